package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// server is the nsqd under load, seen from outside: its process and its HTTP API.
type server struct {
	pid  int
	http string
}

// reading is what had been spent at one moment.
type reading struct {
	at     time.Time
	server time.Duration
	load   time.Duration
	busy   time.Duration // all CPUs, all processes
}

func (s *server) read() (reading, error) {
	r := reading{at: time.Now()}
	var err error
	if r.server, err = cpuTime(processClock(s.pid)); err != nil {
		return r, fmt.Errorf("no CPU time of process %d: %w", s.pid, err)
	}
	if r.load, err = cpuTime(processClock(os.Getpid())); err != nil {
		return r, err
	}
	r.busy, err = busyTime()
	return r, err
}

// processClock is clock_getcpuclockid(3): all threads of a process, those that have ended too, in nanoseconds.
func processClock(pid int) uintptr { return uintptr(uint32(^pid<<3 | 2)) }

func cpuTime(clock uintptr) (time.Duration, error) {
	var t syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&t)), 0)
	if errno != 0 {
		return 0, errno
	}
	return time.Duration(t.Nano()), nil
}

// busyTime is what all CPUs together have not been idle, in steps of 10 ms.
func busyTime() (time.Duration, error) {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(content), "\n")
	var ticks int64
	for i, field := range strings.Fields(line)[1:9] {
		const idle, ioWait = 3, 4
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		if i != idle && i != ioWait {
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// settle returns once what the server put off is done: it has put in next to no CPU time for a while, or the same little
// again and again, which is what its connections cost at rest (a timer each, say).
func (s *server) settle() (reading, error) {
	const pause, longest = 20 * time.Millisecond, 20 * time.Second
	var spent []time.Duration
	before, err := s.read()
	for end := before.at.Add(longest); err == nil && !atRest(spent) && before.at.Before(end); {
		time.Sleep(pause)
		var now reading
		now, err = s.read()
		spent = append(spent, now.server-before.server)
		before = now
	}
	return before, err
}

// atRest judges by what was put in between one look and the next, 20 ms each.
func atRest(spent []time.Duration) bool {
	const looks, more, next, little = 3, 10, 400 * time.Microsecond, 4 * time.Millisecond
	if n := len(spent); n >= looks && slices.Max(spent[n-looks:]) < next {
		return true
	}
	if len(spent) < more {
		return false
	}
	last := spent[len(spent)-more:]
	least, most := slices.Min(last), slices.Max(last)
	return most < little && most < 2*least
}

func (s *server) residentBytes() (int64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(content))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// --- Its HTTP API; never used while something is measured ----------------------------------------------------------

type clientStats struct {
	FinishCount int `json:"finish_count"`
}

type channelStats struct {
	Name          string        `json:"channel_name"`
	Depth         int           `json:"depth"`
	InFlight      int           `json:"in_flight_count"`
	Deferred      int           `json:"deferred_count"`
	MessageCount  int           `json:"message_count"`
	RequeueCount  int           `json:"requeue_count"`
	TimeoutCount  int           `json:"timeout_count"`
	ConsumerCount int           `json:"client_count"`
	Clients       []clientStats `json:"clients"`
}

type topicStats struct {
	Name         string         `json:"topic_name"`
	Depth        int            `json:"depth"`
	MessageCount int            `json:"message_count"`
	Channels     []channelStats `json:"channels"`
}

// stats adds up what is said of all these topics, which have channels of the same names.
func (s *server) stats(topics []string) (*topicStats, error) {
	query := url.Values{"format": {"json"}}
	if len(topics) == 1 {
		query.Set("topic", topics[0])
	}
	body, err := s.call("GET", "/stats", query)
	if err != nil {
		return nil, err
	}
	var all struct {
		Topics []topicStats `json:"topics"`
	}
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, fmt.Errorf("/stats: %w", err)
	}
	wanted := map[string]bool{}
	for _, name := range topics {
		wanted[name] = true
	}
	sum := &topicStats{}
	for i := range all.Topics {
		if wanted[all.Topics[i].Name] {
			delete(wanted, all.Topics[i].Name)
			sum.add(&all.Topics[i])
		}
	}
	for name := range wanted {
		return nil, fmt.Errorf("/stats shows no topic %s", name)
	}
	return sum, nil
}

func (t *topicStats) add(other *topicStats) {
	t.Depth += other.Depth
	t.MessageCount += other.MessageCount
	for _, channel := range other.Channels {
		t.channel(channel.Name).add(channel)
	}
}

func (t *topicStats) channel(name string) *channelStats {
	for i := range t.Channels {
		if t.Channels[i].Name == name {
			return &t.Channels[i]
		}
	}
	t.Channels = append(t.Channels, channelStats{Name: name})
	return &t.Channels[len(t.Channels)-1]
}

func (c *channelStats) add(other channelStats) {
	c.Depth += other.Depth
	c.InFlight += other.InFlight
	c.Deferred += other.Deferred
	c.MessageCount += other.MessageCount
	c.RequeueCount += other.RequeueCount
	c.TimeoutCount += other.TimeoutCount
	c.ConsumerCount += other.ConsumerCount
	c.Clients = append(c.Clients, other.Clients...)
}

func (s *server) createTopic(topic string, channels []string) error {
	if _, err := s.call("POST", "/topic/create", url.Values{"topic": {topic}}); err != nil {
		return err
	}
	for _, channel := range channels {
		if _, err := s.call("POST", "/channel/create", url.Values{"topic": {topic}, "channel": {channel}}); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) deleteTopic(topic string) error {
	_, err := s.call("POST", "/topic/delete", url.Values{"topic": {topic}})
	return err
}

func (s *server) call(method, path string, query url.Values) ([]byte, error) {
	request, err := http.NewRequest(method, "http://"+s.http+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	// A connection kept open would be one more thing for the server to look after.
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, body)
	}
	return body, err
}
