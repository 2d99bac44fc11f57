package main

// #include <stdlib.h>
// #include "threads.h"
import "C"

import (
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

// bystander measures how long a quiet client waits for its OKs while other connections abuse the server.
//
// The quiet client publishes one message at a time to a topic of its own, at a steady pace and whatever the server does, in a
// thread in C. It begins before the abuse and goes on until the abuse is over and its last message has its OK.
type bystander struct {
	server   *server
	tcp      string
	auth     string // where nsqd asks for authorizations, if it does
	abuse    string
	count    int
	within   time.Duration
	pause    time.Duration
	interval time.Duration
	size     int
	seconds  float64
	random   *rand.Rand
}

const (
	quietTopic = "quiet"
	abuseTopic = "abuse"

	// The quiet client publishes so long before the abuse begins and after it has ended.
	calm = 500 * time.Millisecond

	longestRun    = 10 * time.Minute
	quietPatience = 2 * time.Minute
)

// An abuser is what the other connections do.
type abuser interface {
	// prepare makes what can be made before the clock starts.
	prepare(b *bystander) error
	// run returns when the abuse has been answered: how many requests or messages those were. Loops end at the deadline.
	run(deadline time.Time) (int, error)
	// check compares what the server says with what was done.
	check() error
	close()
}

// lateness is implemented by abusers that send messages at moments: nanoseconds after those, and how many came before.
type lateness interface{ lateness() ([]int64, int64) }

func parseBystander(words []string) *bystander {
	b := &bystander{server: &server{}}
	var seed int64
	flags := flag.NewFlagSet("load bystander", flag.ExitOnError)
	flags.StringVar(&b.tcp, "tcp", "", "host:port of nsqd")
	flags.StringVar(&b.server.http, "http", "", "host:port of its HTTP API")
	flags.IntVar(&b.server.pid, "pid", 0, "its process")
	flags.StringVar(&b.auth, "auth-http-address", "", "host:port that nsqd asks for authorizations: an auth server listens there")
	flags.StringVar(&b.abuse, "abuse", "none", "what the other connections do: "+strings.Join(namesOfAbuses(), ", "))
	flags.IntVar(&b.count, "count", 1, "messages, connections, patterns or topics of the abuse, or messages in each of its requests")
	flags.DurationVar(&b.within, "within", 30*time.Second, "deferred messages are due at random moments within so long")
	// Go's nsqd looks every five seconds whether there are new channels with anything deferred.
	flags.DurationVar(&b.pause, "pause", 6*time.Second, "between making their channel and publishing them")
	flags.DurationVar(&b.interval, "interval", 5*time.Millisecond, "between two messages of the quiet client")
	flags.IntVar(&b.size, "size", 200, "bytes of a message of the quiet client")
	flags.Float64Var(&b.seconds, "seconds", 10, "how long the abuse goes on where it is a loop, or is waited for after the connections were closed")
	flags.Int64Var(&seed, "seed", 1, "of all that is random")
	_ = flags.Parse(words)
	b.random = rand.New(rand.NewSource(seed))
	return b
}

func namesOfAbuses() []string {
	var names []string
	for name := range abuses {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (b *bystander) run() (*report, error) {
	made := abuses[b.abuse]
	if made == nil {
		return nil, fmt.Errorf("no such abuse: %q", b.abuse)
	}
	if b.auth != "" {
		listener, err := serveAuthorizations(b.auth, b.count)
		if err != nil {
			return nil, err
		}
		defer listener.Close()
	}
	abuser := made()
	defer abuser.close()
	if err := b.server.createTopic(quietTopic, nil); err != nil {
		return nil, err
	}
	if err := abuser.prepare(b); err != nil {
		return nil, fmt.Errorf("%s: %w", b.abuse, err)
	}
	quiet, err := b.connectQuiet()
	if err != nil {
		return nil, fmt.Errorf("quiet client: %w", err)
	}
	defer quiet.free()
	report, err := b.measure(abuser, quiet)
	if err != nil {
		return nil, err
	}
	if err := abuser.check(); err != nil {
		return nil, fmt.Errorf("wrong: %s: %w", b.abuse, err)
	}
	return report, b.checkQuiet(report.Messages)
}

func (b *bystander) measure(abuser abuser, quiet *quietClient) (*report, error) {
	begin, err := b.server.settle()
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- quiet.publish(b.interval) }()
	time.Sleep(calm)
	count, abuseErr := abuser.run(time.Now().Add(time.Duration(b.seconds * float64(time.Second))))
	time.Sleep(calm)
	quiet.end()
	if err := <-done; err != nil {
		return nil, fmt.Errorf("quiet client: %w", err)
	}
	if abuseErr != nil {
		return nil, fmt.Errorf("%s: %w", b.abuse, abuseErr)
	}
	if _, idle := abuser.(none); count == 0 && !idle {
		return nil, fmt.Errorf("%s: the server answered nothing", b.abuse)
	}
	end, err := b.server.read()
	if err != nil {
		return nil, err
	}
	r := &report{Messages: len(quiet.waits), Abuses: count, Seconds: end.at.Sub(begin.at).Seconds()}
	r.spent(begin, end)
	r.Latency = percentiles(quiet.waits)
	r.Latency.Longest = float64(slices.Max(quiet.waits)) / 1e3
	r.Latency.LateP99 = percentiles(quiet.late).P99
	if timed, ok := abuser.(lateness); ok {
		var late []int64
		late, r.AbuseEarly = timed.lateness()
		r.AbuseP99 = percentiles(late).P99
	}
	r.RSS, err = b.server.peakBytes()
	return r, err
}

func (b *bystander) checkQuiet(published int) error {
	stats, err := b.server.stats([]string{quietTopic})
	if err == nil && stats.MessageCount != published {
		err = fmt.Errorf("wrong: %d messages of the quiet client were answered, the server says %+v", published, stats)
	}
	return err
}

// --- The quiet client ----------------------------------------------------------------------------------------------

type quietClient struct {
	thread  *thread
	request C.struct_request
	stop    *C.int32_t
	waits   []int64 // nanoseconds from the write to the OK
	late    []int64
}

func (b *bystander) connectQuiet() (*quietClient, error) {
	conn, err := b.connect("one")
	if err != nil {
		return nil, err
	}
	t, err := takeOver(conn)
	if err != nil {
		return nil, err
	}
	var r request
	newRequest["pub"](&r, options{size: b.size}, quietTopic, func() []byte { return randomBody(b.size, b.random) })
	return &quietClient{
		thread: t,
		request: C.struct_request{
			bytes: (*C.uint8_t)(C.CBytes(r.bytes)), length: C.int64_t(len(r.bytes)), messages: 1,
			first_body: C.int64_t(r.bodies[0]),
		},
		stop: (*C.int32_t)(C.calloc(1, C.sizeof_int32_t)),
	}, nil
}

func (q *quietClient) publish(interval time.Duration) error {
	most := int(longestRun / interval)
	messages := (*C.struct_quiet_message)(C.calloc(C.size_t(most), C.sizeof_struct_quiet_message))
	defer C.free(unsafe.Pointer(messages))
	var sent C.int64_t
	if err := failed(C.publish_steadily(C.int(q.thread.fd), &q.request, C.int64_t(interval), C.int64_t(most),
		C.int64_t(quietPatience), q.stop, messages, &sent)); err != nil {
		return err
	}
	if int(sent) == most {
		return fmt.Errorf("the abuse did not end within %v", longestRun)
	}
	if sent == 0 {
		return errors.New("it published nothing")
	}
	for _, each := range unsafe.Slice(messages, int(sent)) {
		q.waits = append(q.waits, int64(each.waited))
		q.late = append(q.late, int64(each.late))
	}
	return nil
}

// end has publish return once its last message has been answered.
func (q *quietClient) end() { C.end_quietly(q.stop) }

func (q *quietClient) free() {
	q.thread.Close()
	C.free(unsafe.Pointer(q.request.bytes))
	C.free(unsafe.Pointer(q.stop))
}

// connect opens a V2 conversation; where there is an auth server, with this secret.
func (b *bystander) connect(secret string) (net.Conn, error) {
	conn, err := connect(b.tcp, layers{}, -1, 0)
	if err != nil || b.auth == "" {
		return conn, err
	}
	_, err = authenticate(conn, secret)
	return conn, err
}

// peakBytes is the most memory that the server has had resident.
func (s *server) peakBytes() (int64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(content), "VmHWM:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, errors.New("/proc shows no VmHWM")
	}
	kilobytes, err := strconv.ParseInt(fields[0], 10, 64)
	return kilobytes * 1024, err
}
