package main

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand"
	"net"
	"time"
)

// A body begins with the number of its message, then the moment it was sent; the rest is letters.
const (
	numberEnd = 8
	stampEnd  = 16
)

const (
	frameResponse = 0
	frameError    = 1
	frameMessage  = 2

	frameHeader   = 4 + 4
	messageHeader = 8 + 2 + 16
)

var (
	okFrame   = []byte("\x00\x00\x00\x06\x00\x00\x00\x00OK")
	heartbeat = []byte("_heartbeat_")
)

// putNumber writes 56 bits, seven to a byte and never a newline: over HTTP newlines part the messages.
func putNumber(body []byte, number int) {
	for i := 0; i < numberEnd; i++ {
		body[i] = byte(number) | 0x80
		number >>= 7
	}
}

// number is -1 where putNumber has not been.
func number(body []byte) int {
	if len(body) < numberEnd {
		return -1
	}
	n := 0
	for i := numberEnd - 1; i >= 0; i-- {
		if body[i] < 0x80 {
			return -1
		}
		n = n<<7 | int(body[i]&0x7f)
	}
	return n
}

const (
	leastSpread  = 50
	medianSpread = 1 << 10
	mostSpread   = 64 << 10
)

// bodySize is the size of the next message.
func (o options) bodySize(random *rand.Rand) int {
	if !o.spread {
		return o.size
	}
	for {
		if size := int(medianSpread * math.Exp(1.5*random.NormFloat64())); size >= leastSpread && size <= mostSpread {
			return size
		}
	}
}

func randomBody(size int, random *rand.Rand) []byte {
	body := make([]byte, size)
	for i := range body {
		body[i] = byte('a' + random.Intn(26))
	}
	return body
}

// request is one write with a place for the number of each of its messages, used again and again.
type request struct {
	bytes    []byte
	messages int
	bodies   []int           // where they start; nowhere once it is packed
	delay    time.Duration   // of the deliveries, or
	delays   []time.Duration // of each message's: each carries the moment at which it is to be delivered
}

func (r *request) add(parts ...[]byte) {
	for _, part := range parts {
		r.bytes = append(r.bytes, part...)
	}
}

func (r *request) addBody(body []byte) {
	r.messages++
	r.bodies = append(r.bodies, len(r.bytes))
	r.bytes = append(r.bytes, body...)
}

func (r *request) putNumbers(first int) {
	for i, at := range r.bodies {
		putNumber(r.bytes[at:], first+i)
	}
	if r.delays == nil {
		return
	}
	now := time.Now()
	for i, at := range r.bodies {
		binary.BigEndian.PutUint64(r.bytes[at+numberEnd:], uint64(now.Add(r.delays[i]).UnixNano()))
	}
}

// pack deflates it, to be written below the compression again and again: by a compressor of its own, so that nothing in it
// refers to what is before it, and flushed, so that it ends with a whole byte. Its messages have no numbers then.
func (r *request) pack() error {
	var packed bytes.Buffer
	writer, err := flate.NewWriter(&packed, flate.DefaultCompression)
	if err != nil {
		return err
	}
	if _, err := writer.Write(r.bytes); err != nil {
		return err
	}
	err = writer.Flush()
	r.bytes, r.bodies = packed.Bytes(), nil
	return err
}

func size32(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

// newRequest has the ways to publish: so many messages in one command or, over HTTP, in one request.
var newRequest = map[string]func(r *request, o options, topic string, body func() []byte){
	"pub": func(r *request, o options, topic string, body func() []byte) {
		b := body()
		r.add([]byte("PUB "+topic+"\n"), size32(len(b)))
		r.addBody(b)
	},
	"dpub": func(r *request, o options, topic string, body func() []byte) {
		r.add([]byte(fmt.Sprintf("DPUB %s %d\n", topic, r.delay.Milliseconds())), size32(o.size))
		r.addBody(body())
	},
	"mpub": func(r *request, o options, topic string, body func() []byte) {
		bodies, size := make([][]byte, o.batch), 4
		for i := range bodies {
			bodies[i] = body()
			size += 4 + len(bodies[i])
		}
		r.add([]byte("MPUB "+topic+"\n"), size32(size), size32(o.batch))
		for _, b := range bodies {
			r.add(size32(len(b)))
			r.addBody(b)
		}
	},
	"http-pub": func(r *request, o options, topic string, body func() []byte) {
		b := body()
		r.add(httpHead("/pub?topic="+topic, o.http, len(b)))
		r.addBody(b)
	},
	// So many NOPs, which have no answer, and a PUB.
	"nops": func(r *request, o options, topic string, body func() []byte) {
		r.add(bytes.Repeat([]byte("NOP\n"), o.batch), []byte("PUB "+topic+"\n"), size32(o.size))
		r.addBody(body())
	},
	"http-mpub": func(r *request, o options, topic string, body func() []byte) {
		r.add(httpHead("/mpub?topic="+topic, o.http, o.batch*(o.size+1)-1))
		for i := 0; i < o.batch; i++ {
			if i > 0 {
				r.add([]byte("\n"))
			}
			r.addBody(body())
		}
	},
}

func httpHead(target, host string, length int) []byte {
	return []byte(fmt.Sprintf(
		"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nContent-Type: application/octet-stream\r\n\r\n",
		target, host, length))
}

// connect opens a V2 conversation; heartbeatMs and bufferSize as in IDENTIFY: -1 for none, 0 for the server's default.
func connect(address string, layers layers, heartbeatMs, bufferSize int) (net.Conn, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	identity := fmt.Sprintf(
		`{"client_id":"load","hostname":"load","user_agent":"load/1","heartbeat_interval":%d,"output_buffer_size":%d%s}`,
		heartbeatMs, bufferSize, layers.asked())
	var hello request
	hello.add([]byte("  V2IDENTIFY\n"), size32(len(identity)), []byte(identity))
	if _, err := conn.Write(hello.bytes); err != nil {
		return conn, err
	}
	return layers.upgrade(conn)
}

// exchange sends a command that is answered by OK.
func exchange(conn net.Conn, command []byte) error {
	if _, err := conn.Write(command); err != nil {
		return err
	}
	return expectOKs(conn, make([]byte, len(okFrame)))
}

// expectOKs reads as many OKs as fill the buffer, and nothing beyond.
func expectOKs(conn net.Conn, buffer []byte) error {
	have := 0
	for have < len(buffer) {
		n, err := conn.Read(buffer[have:])
		if err != nil {
			return err
		}
		have += n
		// An error frame may be shorter than what is awaited: look at once.
		for at := 0; at+len(okFrame) <= have; at += len(okFrame) {
			if !bytes.Equal(buffer[at:at+len(okFrame)], okFrame) {
				return fmt.Errorf("not OK but %q", buffer[at:have])
			}
		}
	}
	return nil
}
