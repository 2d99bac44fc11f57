package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// tooEarly: delays are told in whole milliseconds.
const tooEarly = time.Millisecond

// tally is what all consumers together have received.
type tally struct {
	received   atomic.Int64
	heartbeats atomic.Int64
	lastAt     atomic.Int64 // when the last FINs were written, nanoseconds since 1970
	failure    atomic.Pointer[error]
}

func (t *tally) fail(err error) { t.failure.CompareAndSwap(nil, &err) }

func (t *tally) err() error {
	if failure := t.failure.Load(); failure != nil {
		return *failure
	}
	return nil
}

// channelTally sees to it that a channel delivers each message once.
type channelTally struct {
	name  string
	place int
	all   *tally
	mutex sync.Mutex
	seen  []uint64
	count int
	ages  []int64       // nanoseconds from write to delivery, or from when it was due, where that is asked for
	early *atomic.Int64 // counts messages that come before their time; nil: those are an error
}

func newChannelTally(name string, all *tally, most int) *channelTally {
	return &channelTally{name: name, all: all, seen: make([]uint64, (most+63)/64)}
}

// note takes the messages of one read.
func (t *channelTally) note(numbers []int) error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for _, n := range numbers {
		if n < 0 || n >= 64*len(t.seen) {
			return fmt.Errorf("a message nobody published, number %d", n)
		}
		word, bit := &t.seen[n/64], uint64(1)<<(n%64)
		if *word&bit != 0 {
			return fmt.Errorf("message %d came twice", n)
		}
		*word |= bit
	}
	t.count += len(numbers)
	return nil
}

// consumer is one subscribed connection. It finishes every message, those of one read in one write.
type consumer struct {
	conn    net.Conn
	channel *channelTally
	ages    bool
	due     map[int]time.Time // where each is given back once: when it is to come again
	mutex   sync.Mutex        // of writing
	numbers []int
	out     []byte
	over    atomic.Bool
	stopped chan struct{}
}

func subscribe(address string, layers layers, topic string, channel *channelTally, heartbeatMs, bufferSize int) (*consumer, error) {
	conn, err := connect(address, layers, heartbeatMs, bufferSize)
	if err != nil {
		return nil, err
	}
	c := &consumer{conn: conn, channel: channel, stopped: make(chan struct{})}
	return c, exchange(conn, []byte("SUB "+topic+" "+channel.name+"\n"))
}

func (c *consumer) ready(count int) error { return c.write([]byte(fmt.Sprintf("RDY %d\n", count))) }

func (c *consumer) write(data []byte) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	_, err := c.conn.Write(data)
	return err
}

// run receives until close.
func (c *consumer) run(bufferSize int) {
	defer close(c.stopped)
	if err := c.receive(make([]byte, bufferSize)); err != nil && !c.over.Load() {
		c.channel.all.fail(fmt.Errorf("consumer of %s: %w", c.channel.name, err))
	}
}

func (c *consumer) close() {
	c.over.Store(true)
	c.conn.Close()
	<-c.stopped
}

func (c *consumer) receive(buffer []byte) error {
	have := 0
	for {
		n, err := c.conn.Read(buffer[have:])
		if err != nil {
			return err
		}
		have += n
		used, err := c.takeFrames(buffer[:have], time.Now().UnixNano())
		if err != nil {
			return err
		}
		have = copy(buffer, buffer[used:have])
		if have == len(buffer) {
			return fmt.Errorf("a frame of more than %d bytes", len(buffer))
		}
	}
}

// takeFrames handles the complete frames and says how many bytes they were.
func (c *consumer) takeFrames(data []byte, now int64) (int, error) {
	c.numbers, c.out = c.numbers[:0], c.out[:0]
	used := 0
	for len(data)-used >= frameHeader {
		size := int(binary.BigEndian.Uint32(data[used:]))
		end := used + 4 + size
		if end > len(data) {
			break
		}
		if err := c.takeFrame(binary.BigEndian.Uint32(data[used+4:]), data[used+frameHeader:end], now); err != nil {
			return 0, err
		}
		used = end
	}
	if len(c.out) == 0 {
		return used, nil
	}
	if err := c.channel.note(c.numbers); err != nil {
		return 0, err
	}
	if err := c.write(c.out); err != nil {
		return 0, err
	}
	if len(c.numbers) > 0 {
		c.channel.all.lastAt.Store(time.Now().UnixNano())
		c.channel.all.received.Add(int64(len(c.numbers)))
	}
	return used, nil
}

func (c *consumer) takeFrame(kind uint32, data []byte, now int64) error {
	switch {
	case kind == frameMessage && len(data) >= messageHeader:
		return c.takeMessage(binary.BigEndian.Uint16(data[8:]), data[10:messageHeader], data[messageHeader:], now)
	case kind == frameResponse && bytes.Equal(data, heartbeat):
		c.out = append(c.out, "NOP\n"...)
		c.channel.all.heartbeats.Add(1)
		return nil
	}
	return fmt.Errorf("not a message but a frame of type %d: %q", kind, data)
}

func (c *consumer) takeMessage(attempts uint16, id, body []byte, now int64) error {
	number := number(body)
	if c.due != nil && attempts == 1 {
		delay := someDelay(number)
		c.due[number] = time.Now().Add(delay)
		c.out = append(append(c.out, "REQ "...), id...)
		c.out = append(c.out, fmt.Sprintf(" %d\n", delay.Milliseconds())...)
		return nil
	}
	due, again := c.due[number]
	if attempts > 2 || again != (attempts == 2) {
		return fmt.Errorf("a message at its attempt %d", attempts)
	}
	c.numbers = append(c.numbers, number)
	c.out = append(append(append(c.out, "FIN "...), id...), '\n')
	if !c.ages || len(body) < stampEnd {
		return nil
	}
	if !again {
		due = time.Unix(0, int64(binary.BigEndian.Uint64(body[numberEnd:])))
	}
	age := now - due.UnixNano()
	if age < -int64(tooEarly) {
		if c.channel.early == nil {
			return fmt.Errorf("a message came %v before its time", time.Duration(-age))
		}
		c.channel.early.Add(1)
		return nil
	}
	c.channel.ages = append(c.channel.ages, age)
	return nil
}
