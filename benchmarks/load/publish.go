package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// numbers hands out the messages' numbers, from 0 on without a gap, until there are enough or the time is over.
type numbers struct {
	next     atomic.Int64
	most     int
	deadline time.Time
}

func (n *numbers) take(count int) (first int, ok bool) {
	if !n.deadline.IsZero() && time.Now().After(n.deadline) {
		return 0, false
	}
	first = int(n.next.Add(int64(count))) - count
	return first, first < n.most
}

// publisher is one connection: writes of one form, used in turn, and whatever reads the answers to one write.
type publisher struct {
	conn     net.Conn
	out      io.Writer // of requests: conn, or what is below it where they are packed
	pieces   int       // the most bytes of a write; 0: any
	requests []request
	answers  func() error
	sent     int
	late     []int64 // nanoseconds, where writes have their moments
}

const (
	shortestDelay = 100 * time.Millisecond
	longestDelay  = time.Second
	delays        = 97 // of a DPUB, used in turn
	packs         = 16 // of a publisher that packs its requests, for each it would have otherwise
	spreads       = 64 // of a publisher of messages of different sizes, likewise
)

// newPublisher makes the one with this place among o.publishers; together their commands go to all topics in turn.
func (o options) newPublisher(place int, topics []string, random *rand.Rand) (*publisher, error) {
	p := &publisher{pieces: o.pieces}
	count := (len(topics) + o.publishers*o.burst - 1) / (o.publishers * o.burst)
	switch {
	case o.publish == "dpub":
		count = delays
	case o.packed():
		count *= packs
	case o.spread:
		count *= spreads
	}
	for number := 0; number < count; number++ {
		var r request
		if o.publish == "dpub" {
			r.delay = someDelay(number)
		}
		for i := 0; i < o.burst; i++ {
			topic := topics[(place+o.publishers*(number*o.burst+i))%len(topics)]
			newRequest[o.publish](&r, o, topic, func() []byte { return randomBody(o.bodySize(random), random) })
		}
		if o.packed() {
			if err := r.pack(); err != nil {
				return p, err
			}
		}
		p.requests = append(p.requests, r)
	}
	var err error
	if strings.HasPrefix(o.publish, "http") {
		if p.conn, err = net.Dial("tcp", o.http); err == nil {
			reader := bufio.NewReader(p.conn)
			p.answers = func() error { return expectHTTPOKs(reader, o.burst) }
		}
	} else if p.conn, err = connect(o.tcp, o.layers, -1, 0); err == nil {
		buffer := make([]byte, o.burst*len(okFrame))
		p.answers = func() error { return expectOKs(p.conn, buffer) }
	}
	p.out = p.conn
	if through, ok := p.conn.(*compressed); ok && o.packed() {
		p.out = through.Conn
	}
	return p, err
}

// someDelay spreads whole milliseconds evenly between the shortest and the longest.
func someDelay(number int) time.Duration {
	span := int((longestDelay - shortestDelay) / time.Millisecond)
	return shortestDelay + time.Duration(number*619%(span+1))*time.Millisecond
}

// run publishes as fast as the answers come.
func (p *publisher) run(numbers *numbers, outstanding int) error {
	waiting := 0
	for turn := 0; ; turn++ {
		if waiting == outstanding {
			if err := p.answers(); err != nil {
				return err
			}
			waiting--
		}
		request := &p.requests[turn%len(p.requests)]
		first, ok := numbers.take(request.messages)
		if !ok {
			break
		}
		request.putNumbers(first)
		if err := p.write(request.bytes); err != nil {
			return err
		}
		p.sent += request.messages
		waiting++
	}
	for ; waiting > 0; waiting-- {
		if err := p.answers(); err != nil {
			return err
		}
	}
	return nil
}

// write writes it all at once, or in pieces.
func (p *publisher) write(data []byte) error {
	for p.pieces > 0 && len(data) > p.pieces {
		if _, err := p.out.Write(data[:p.pieces]); err != nil {
			return err
		}
		data = data[p.pieces:]
	}
	_, err := p.out.Write(data)
	return err
}

// publishAll runs every publisher to its end; the count is that of the messages sent, all of them answered.
func publishAll(publishers []*publisher, run func(*publisher) error) (int, error) {
	var group sync.WaitGroup
	failures := make(chan error, len(publishers))
	for _, p := range publishers {
		group.Add(1)
		go func(p *publisher) {
			defer group.Done()
			if err := run(p); err != nil {
				failures <- fmt.Errorf("publisher: %w", err)
			}
		}(p)
	}
	group.Wait()
	count := 0
	for _, p := range publishers {
		count += p.sent
	}
	select {
	case err := <-failures:
		return count, err
	default:
		return count, nil
	}
}

// expectHTTPOKs reads so many replies, each a 200 with OK as its body.
func expectHTTPOKs(reader *bufio.Reader, count int) error {
	for ; count > 0; count-- {
		if err := expectHTTPOK(reader); err != nil {
			return err
		}
	}
	return nil
}

func expectHTTPOK(reader *bufio.Reader) error {
	status, err := reader.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(status, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("not 200 but %q", status)
	}
	length := -1
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		const name = "content-length:"
		if len(line) > len(name) && bytes.EqualFold(line[:len(name)], []byte(name)) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(name):]))); err != nil {
				return err
			}
		}
	}
	var body [2]byte
	if length != len(body) {
		return fmt.Errorf("a reply of %d bytes is not OK", length)
	}
	if _, err := io.ReadFull(reader, body[:]); err != nil || string(body[:]) != "OK" {
		return fmt.Errorf("not OK but %q (%v)", body, err)
	}
	return nil
}
