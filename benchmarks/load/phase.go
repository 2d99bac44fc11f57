package main

import (
	"fmt"
	"math/rand"
	"time"
)

const (
	readBuffer  = 256 * 1024
	patience    = 30 * time.Second
	pollEvery   = time.Millisecond
	heartbeatMs = 60000
)

// phase is the life of a topic, or of several that are published to in turn: filled, consumed, checked, deleted.
type phase struct {
	options
	server     *server
	topics     []string
	tally      tally
	channels   []*channelTally
	publishers []*publisher
	consumers  []*consumer
	library    library
	ages       bool // of messages are asked for, whether there is a rate or not
	published  int
	touched    int // of those, before anything is measured
	begin      reading
	lastAt     time.Time
}

func (o options) newPhase(server *server, name string) *phase {
	p := &phase{options: o, server: server, topics: []string{name}}
	for i := 1; i < o.topics; i++ {
		p.topics = append(p.topics, fmt.Sprintf("%s%d", name, i))
	}
	return p
}

// runFill leaves messages behind, all of them in the server's hands.
func (o options) runFill(server *server, random *rand.Rand) (*report, error) {
	o.prefill, o.consumers = true, 0
	p := o.newPhase(server, "filled")
	defer p.closeAll()
	if err := p.prepare(random); err != nil {
		return nil, err
	}
	return &report{Messages: p.published}, p.check()
}

func (o options) runPhase(server *server, name string, random *rand.Rand) (*report, error) {
	p := o.newPhase(server, name)
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
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("wrong: %w", err)
	}
	p.closeAll()
	if len(p.topics) > 1 || p.keep {
		return report, nil // of many topics: its server's end comes next, and is quicker without
	}
	return report, server.deleteTopic(name)
}

// prepare ends with everybody connected and the server at rest.
func (p *phase) prepare(random *rand.Rand) error {
	var names []string
	for i := 0; i < p.options.channels; i++ {
		names = append(names, fmt.Sprintf("channel%d", i))
		channel := newChannelTally(names[i], &p.tally, p.most)
		channel.place = i
		p.channels = append(p.channels, channel)
	}
	for _, topic := range p.topics {
		if err := p.server.createTopic(topic, names); err != nil {
			return err
		}
	}
	if p.prefill {
		if err := p.fill(random, p.most); err != nil {
			return err
		}
	} else {
		if p.backlog > 0 {
			if err := p.fill(random, p.backlog); err != nil {
				return err
			}
			p.publishers[0].conn.Close()
			p.publishers = nil
		}
		if err := p.connectAll(random); err != nil {
			return err
		}
	}
	for _, topic := range p.topics {
		for _, channel := range p.channels {
			if err := p.connectConsumers(topic, channel); err != nil {
				return err
			}
		}
	}
	if err := p.touch(); err != nil {
		return err
	}
	time.Sleep(time.Duration(p.pause * float64(time.Second)))
	var err error
	p.begin, err = p.server.settle()
	return err
}

func (p *phase) connectConsumers(topic string, channel *channelTally) error {
	bufferSize := 0
	if p.unbuffered {
		bufferSize = -1
	}
	for i := 0; i < p.options.consumers; i++ {
		if p.client == goNSQ {
			if err := p.subscribeLibrary(topic, channel); err != nil {
				return err
			}
			continue
		}
		c, err := subscribe(p.tcp, p.layers, topic, channel, heartbeatMs, bufferSize)
		if err != nil {
			return err
		}
		c.ages = p.ages || p.rate > 0
		if p.requeue {
			c.due = map[int]time.Time{}
		}
		p.consumers = append(p.consumers, c)
		if p.rate > 0 && !p.delayed() {
			if err := c.runAtMoments(p.rdy, p.atMoments()); err != nil {
				return err
			}
			continue
		}
		go c.run(readBufferOf(len(p.topics)))
		if !p.isFilled() {
			if err := c.ready(p.rdyOf(channel)); err != nil {
				return err
			}
		}
	}
	return nil
}

// isFilled: messages wait before anything is measured, and consumers take none until then.
func (p *phase) isFilled() bool { return p.prefill || p.backlog > 0 }

// connectAll opens the connections that publish.
func (p *phase) connectAll(random *rand.Rand) error {
	if p.client == goNSQ {
		return p.connectLibrary(random)
	}
	return p.connectPublishers(p.options, random)
}

// rdyOf a channel's consumers differs where channels are consumed at different speeds.
func (p *phase) rdyOf(channel *channelTally) int {
	if !p.uneven {
		return p.rdy
	}
	return max(1, p.rdy>>(channel.place%8))
}

// atMoments is how many messages are sent at a rate.
func (p *phase) atMoments() int { return min(p.most, int(p.rate*p.seconds)) }

// readBufferOf many topics' consumers is smaller: together they would fill the machine's memory.
func readBufferOf(topics int) int { return max(readBuffer/topics, 16*1024) }

// touch has every one of many topics begun: making a thousand is another matter than publishing to them.
func (p *phase) touch() error {
	perWrite := p.batch * p.burst
	if len(p.topics) == 1 || p.prefill {
		return nil
	}
	numbers := &numbers{most: (len(p.topics) + perWrite - 1) / perWrite * perWrite}
	var err error
	if p.client == goNSQ {
		p.touched, err = p.publishByLibrary(numbers)
	} else {
		p.touched, err = publishAll(p.publishers, func(each *publisher) error { return each.run(numbers, p.outstanding) })
	}
	if err == nil && p.options.consumers > 0 {
		err = p.awaitMessages(p.touched*len(p.channels), time.Now().Add(patience))
	}
	return err
}

func (p *phase) connectPublishers(o options, random *rand.Rand) error {
	for i := 0; i < o.publishers; i++ {
		publisher, err := o.newPublisher(i, p.topics, random)
		if err != nil {
			return err
		}
		p.publishers = append(p.publishers, publisher)
	}
	return nil
}

// fill publishes what is going to be consumed, quickly.
func (p *phase) fill(random *rand.Rand, most int) error {
	o := p.options
	o.publish, o.publishers, o.batch, o.burst, o.outstanding = "mpub", 1, max(1, min(100, (4<<20)/o.size)), 1, 2
	if err := p.connectPublishers(o, random); err != nil {
		return err
	}
	numbers := &numbers{most: most - most%o.batch}
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
	filled := p.published
	numbers.next.Store(int64(p.touched + filled))
	if p.isFilled() {
		if err := p.sayReady(p.rdyOf); err != nil {
			return err
		}
	}
	if p.client == goNSQ {
		p.published, err = p.publishByLibrary(numbers)
		p.published += p.touched
	} else {
		p.published, err = publishAll(p.publishers, func(each *publisher) error {
			switch {
			case p.rate > 0:
				return each.runAtMoments(p.rate, p.atMoments())
			case p.options.thread:
				return each.runInTurn(numbers)
			}
			return each.run(numbers, p.outstanding)
		})
	}
	if err != nil {
		return err
	}
	p.published += filled
	p.lastAt = time.Now()
	if p.options.consumers == 0 {
		return nil
	}
	return p.awaitMessages(p.published*len(p.channels), time.Now().Add(patience))
}

// drain lets the consumers take what is there, or what they can until the deadline.
func (p *phase) drain(deadline time.Time) error {
	if err := p.sayReady(p.rdyOf); err != nil {
		return err
	}
	all := p.published * len(p.channels)
	for int(p.tally.received.Load()) < all && time.Now().Before(deadline) && p.tally.err() == nil {
		time.Sleep(pollEvery)
	}
	if err := p.sayReady(func(*channelTally) int { return 0 }); err != nil {
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

func (p *phase) sayReady(count func(*channelTally) int) error {
	for _, c := range p.consumers {
		if err := c.ready(count(c.channel)); err != nil {
			return err
		}
	}
	p.library.sayReady(count)
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
	r := &report{Messages: p.published - p.touched}
	if p.options.consumers > 0 {
		r.Messages = int(p.tally.received.Load()) - p.touched*len(p.channels)
	}
	r.Seconds = p.lastAt.Sub(p.begin.at).Seconds()
	r.spent(p.begin, end)
	r.RSS, err = p.server.residentBytes()
	if p.rate > 0 {
		r.Latency = percentiles(p.channels[0].ages)
		r.Latency.LateP99 = percentiles(p.late()).P99
	}
	if err == nil && r.Messages > 0 && r.ServerCPU < int64(r.Messages)*50 {
		err = fmt.Errorf("process %d does not do the work (it must be nsqd itself, not a program that starts it)", p.pid)
	}
	return r, err
}

// late is how late the messages with moments were written.
func (p *phase) late() []int64 {
	if p.client == goNSQ {
		return p.library.late
	}
	return p.publishers[0].late
}

// check compares what the server says with what was sent and received.
func (p *phase) check() error {
	if err := p.tally.err(); err != nil {
		return err
	}
	stats, err := p.server.stats(p.topics)
	// A server that waits for its disk seems to rest while messages are still on their way to the channels.
	// A library sends its FINs a little after its program has returned.
	for end := time.Now().Add(patience); err == nil && (stats.Depth > 0 || p.isAnswering(stats)) && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
		stats, err = p.server.stats(p.topics)
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
	requeued := 0
	if p.requeue {
		requeued = p.published
	}
	for _, channel := range stats.Channels {
		want := received[channel.Name]
		finished := 0
		for _, client := range channel.Clients {
			finished += client.FinishCount
		}
		if channel.MessageCount != p.published || channel.Depth != p.published-want || finished != want ||
			channel.RequeueCount != requeued || channel.InFlight+channel.Deferred+channel.TimeoutCount != 0 {
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
	p.library.close()
}
