package main

import (
	"fmt"
	"math"
	"math/rand"
	"sort"
	"time"
)

// report is what one run found out. Times are nanoseconds unless they say otherwise.
type report struct {
	Messages    int      `json:"messages"`
	Seconds     float64  `json:"seconds"`
	ServerCPU   int64    `json:"server_cpu_ns"`
	LoadCPU     int64    `json:"load_cpu_ns"`
	OthersCPU   int64    `json:"others_cpu_ns"` // all other processes, while this ran
	RSS         int64    `json:"rss_bytes"`
	Connections int      `json:"connections,omitempty"` // idle ones, and
	RSSOfThem   int64    `json:"rss_of_connections,omitempty"`
	Latency     *latency `json:"latency,omitempty"`
}

type latency struct {
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`
}

const (
	readBuffer  = 256 * 1024
	idleBuffer  = 512
	patience    = 30 * time.Second
	pollEvery   = time.Millisecond
	heartbeatMs = 60000
)

// phase is one topic's life: filled, consumed, checked, deleted.
type phase struct {
	options
	server     *server
	topic      string
	tally      tally
	channels   []*channelTally
	publishers []*publisher
	consumers  []*consumer
	published  int
	begin      reading
	lastAt     time.Time
}

func (o options) runPhase(server *server, topic string, random *rand.Rand) (*report, error) {
	p := &phase{options: o, server: server, topic: topic}
	defer p.closeAll()
	if err := p.prepare(random); err != nil {
		return nil, err
	}
	if err := p.work(); err != nil {
		return nil, err
	}
	report, err := p.measured()
	if err != nil {
		return nil, err
	}
	if err := p.check(report.Messages); err != nil {
		return nil, fmt.Errorf("wrong: %w", err)
	}
	p.closeAll()
	return report, server.deleteTopic(topic)
}

// prepare ends with everybody connected and the server at rest.
func (p *phase) prepare(random *rand.Rand) error {
	var names []string
	for i := 0; i < p.options.channels; i++ {
		names = append(names, fmt.Sprintf("channel%d", i))
		p.channels = append(p.channels, newChannelTally(names[i], &p.tally, p.most))
	}
	if err := p.server.createTopic(p.topic, names); err != nil {
		return err
	}
	if p.prefill {
		if err := p.fill(random); err != nil {
			return err
		}
	} else if err := p.connectPublishers(p.options, random); err != nil {
		return err
	}
	bufferSize := 0
	if p.unbuffered {
		bufferSize = -1
	}
	for _, channel := range p.channels {
		for i := 0; i < p.options.consumers; i++ {
			c, err := subscribe(p.tcp, p.layers, p.topic, channel, heartbeatMs, bufferSize)
			if err != nil {
				return err
			}
			c.ages = p.rate > 0
			p.consumers = append(p.consumers, c)
			go c.run(readBuffer)
			if !p.prefill {
				if err := c.ready(p.rdy); err != nil {
					return err
				}
			}
		}
	}
	var err error
	p.begin, err = p.server.settle()
	return err
}

func (p *phase) connectPublishers(o options, random *rand.Rand) error {
	for i := 0; i < o.publishers; i++ {
		publisher, err := o.newPublisher(p.topic, random)
		if err != nil {
			return err
		}
		p.publishers = append(p.publishers, publisher)
	}
	return nil
}

// fill publishes what is going to be consumed, quickly.
func (p *phase) fill(random *rand.Rand) error {
	o := p.options
	o.publish, o.publishers, o.batch, o.burst, o.outstanding = "mpub", 1, 100, 1, 2
	if err := p.connectPublishers(o, random); err != nil {
		return err
	}
	numbers := &numbers{most: p.most - p.most%o.batch}
	var err error
	p.published, err = publishAll(p.publishers, func(each *publisher) error { return each.run(numbers, o.outstanding) })
	return err
}

// work is what is measured.
func (p *phase) work() error {
	var err error
	deadline := p.begin.at.Add(time.Duration(p.seconds * float64(time.Second)))
	if p.prefill {
		return p.drain(deadline)
	}
	perWrite := p.batch * p.burst
	numbers := &numbers{most: p.most - p.most%perWrite, deadline: deadline}
	p.published, err = publishAll(p.publishers, func(each *publisher) error {
		if p.rate > 0 {
			return each.runAtRate(p.rate, min(p.most, int(p.rate*p.seconds)))
		}
		return each.run(numbers, p.outstanding)
	})
	if err != nil {
		return err
	}
	p.lastAt = time.Now()
	if len(p.consumers) == 0 {
		return nil
	}
	return p.awaitMessages(p.published*len(p.channels), time.Now().Add(patience))
}

// drain lets the consumers take what is there, or what they can until the deadline.
func (p *phase) drain(deadline time.Time) error {
	if err := p.sayReady(p.rdy); err != nil {
		return err
	}
	all := p.published * len(p.channels)
	for int(p.tally.received.Load()) < all && time.Now().Before(deadline) && p.tally.err() == nil {
		time.Sleep(pollEvery)
	}
	if err := p.sayReady(0); err != nil {
		return err
	}
	// What was sent before the server read RDY 0 still comes, and is finished.
	const quiet = 50 * time.Millisecond
	for before := int64(-1); before != p.tally.received.Load(); time.Sleep(quiet) {
		before = p.tally.received.Load()
	}
	p.lastAt = time.Unix(0, p.tally.lastAt.Load())
	return p.tally.err()
}

func (p *phase) sayReady(count int) error {
	for _, c := range p.consumers {
		if err := c.ready(count); err != nil {
			return err
		}
	}
	return nil
}

func (p *phase) awaitMessages(count int, deadline time.Time) error {
	for int(p.tally.received.Load()) < count && p.tally.err() == nil {
		if time.Now().After(deadline) {
			return fmt.Errorf("only %d of %d messages came", p.tally.received.Load(), count)
		}
		time.Sleep(pollEvery)
	}
	p.lastAt = time.Unix(0, p.tally.lastAt.Load())
	return p.tally.err()
}

func (p *phase) measured() (*report, error) {
	end, err := p.server.settle()
	if err != nil {
		return nil, err
	}
	r := &report{Messages: p.published}
	if len(p.consumers) > 0 {
		r.Messages = int(p.tally.received.Load())
	}
	r.Seconds = p.lastAt.Sub(p.begin.at).Seconds()
	r.spent(p.begin, end)
	r.RSS, err = p.server.residentBytes()
	if p.rate > 0 {
		r.Latency = percentiles(p.channels[0].ages)
	}
	if err == nil && r.Messages > 0 && r.ServerCPU < int64(r.Messages)*50 {
		err = fmt.Errorf("process %d does not do the work (it must be nsqd itself, not a program that starts it)", p.pid)
	}
	return r, err
}

func (r *report) spent(begin, end reading) {
	r.ServerCPU = int64(end.server - begin.server)
	r.LoadCPU = int64(end.load - begin.load)
	r.OthersCPU = max(0, int64(end.busy-begin.busy)-r.ServerCPU-r.LoadCPU)
}

// check compares what the server says with what was sent and received.
func (p *phase) check(messages int) error {
	if err := p.tally.err(); err != nil {
		return err
	}
	stats, err := p.server.stats(p.topic)
	// A server that waits for its disk seems to rest while messages are still on their way to the channels.
	for end := time.Now().Add(patience); err == nil && stats.Depth > 0 && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
		stats, err = p.server.stats(p.topic)
	}
	if err != nil {
		return err
	}
	if stats.MessageCount != p.published || stats.Depth != 0 || len(stats.Channels) != len(p.channels) {
		return fmt.Errorf("%d messages were published, the server says %+v", p.published, stats)
	}
	received := map[string]int{}
	for _, channel := range p.channels {
		channel.mutex.Lock()
		received[channel.name] = channel.count
		channel.mutex.Unlock()
	}
	for _, channel := range stats.Channels {
		want := received[channel.Name]
		finished := 0
		for _, client := range channel.Clients {
			finished += client.FinishCount
		}
		if channel.MessageCount != p.published || channel.Depth != p.published-want || finished != want ||
			channel.InFlight+channel.Deferred+channel.RequeueCount+channel.TimeoutCount != 0 {
			return fmt.Errorf("%d of %d messages came and were finished, the server says %+v", want, p.published, channel)
		}
	}
	return nil
}

func (p *phase) closeAll() {
	for _, publisher := range p.publishers {
		if publisher.conn != nil {
			publisher.conn.Close()
		}
	}
	for _, c := range p.consumers {
		c.close()
	}
	p.publishers, p.consumers = nil, nil
}

func percentiles(ages []int64) *latency {
	sort.Slice(ages, func(i, j int) bool { return ages[i] < ages[j] })
	at := func(fraction float64) float64 {
		if len(ages) == 0 {
			return 0
		}
		rank := int(math.Ceil(fraction*float64(len(ages)))) - 1
		return float64(ages[max(rank, 0)]) / 1e3
	}
	return &latency{at(0.5), at(0.99), at(0.999)}
}

// runIdle holds connections that have nothing to do.
func (o options) runIdle(server *server) (*report, error) {
	const everySecond = 1000
	p := &phase{options: o, server: server, topic: "idle"}
	defer p.closeAll()
	channel := newChannelTally("channel0", &p.tally, 0)
	if err := server.createTopic(p.topic, []string{channel.name}); err != nil {
		return nil, err
	}
	if _, err := server.settle(); err != nil {
		return nil, err
	}
	before, err := server.residentBytes()
	if err != nil {
		return nil, err
	}
	for i := 0; i < o.idle; i++ {
		c, err := subscribe(o.tcp, o.layers, p.topic, channel, everySecond, 0)
		if err != nil {
			return nil, err
		}
		p.consumers = append(p.consumers, c)
		go c.run(idleBuffer)
		if err := c.ready(o.rdy); err != nil {
			return nil, err
		}
	}
	// Heartbeats go on meanwhile: there is no rest to wait for.
	time.Sleep(everySecond * time.Millisecond)
	begin, err := server.read()
	if err != nil {
		return nil, err
	}
	heartbeats := p.tally.heartbeats.Load()
	time.Sleep(time.Duration(o.seconds * float64(time.Second)))
	end, err := server.read()
	if err != nil {
		return nil, err
	}
	r := &report{Messages: int(p.tally.heartbeats.Load() - heartbeats), Connections: o.idle}
	r.Seconds = end.at.Sub(begin.at).Seconds()
	r.spent(begin, end)
	if r.RSS, err = server.residentBytes(); err != nil {
		return nil, err
	}
	r.RSSOfThem = r.RSS - before
	return r, p.checkIdle(r)
}

func (p *phase) checkIdle(r *report) error {
	if err := p.tally.err(); err != nil {
		return err
	}
	stats, err := p.server.stats(p.topic)
	if err != nil {
		return err
	}
	if count := stats.Channels[0].ConsumerCount; count != p.idle {
		return fmt.Errorf("wrong: of %d connections %d are left", p.idle, count)
	}
	if least := int(0.9 * math.Floor(r.Seconds) * float64(p.idle)); r.Messages < least {
		return fmt.Errorf("wrong: %d heartbeats came, not at least %d", r.Messages, least)
	}
	return nil
}
