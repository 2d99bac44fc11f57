package main

// #include <stdlib.h>
// #include "threads.h"
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
	"unsafe"
)

// thread is the socket of a connection, taken out of Go's hands: its reads and writes wait, in C.
type thread struct {
	net.Conn // closed
	fd       int
}

func takeOver(conn net.Conn) (*thread, error) {
	defer conn.Close() // Go's poller forgets it by that; the copy stays open
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	t := &thread{Conn: conn}
	if controlErr := raw.Control(func(fd uintptr) { t.fd, err = syscall.Dup(int(fd)) }); controlErr != nil {
		return nil, controlErr
	}
	if err != nil {
		return nil, err
	}
	return t, syscall.SetNonblock(t.fd, false)
}

// Close ends what waits in it.
func (t *thread) Close() error {
	_ = syscall.Shutdown(t.fd, syscall.SHUT_RDWR)
	return syscall.Close(t.fd)
}

func failed(sentence *C.char) error {
	if sentence == nil {
		return nil
	}
	return errors.New(C.GoString(sentence))
}

// runAtMoments publishes so many messages at given moments whatever the server does; each carries the moment of its write,
// or that at which it is to be delivered. What is due together is written together.
func (p *publisher) runAtMoments(rate float64, count int) error {
	fd, requests, free, err := p.inC()
	if err != nil {
		return err
	}
	defer free()
	answered := make(chan error, 1)
	go func() { answered <- failed(C.expect_oks(fd, C.int64_t(count))) }()
	late := make([]int64, count)
	var writes C.int64_t
	if err := failed(C.send_at_moments(fd, &requests[0], C.int64_t(len(requests)), C.double(rate),
		C.int64_t(count), (*C.int64_t)(&late[0]), &writes)); err != nil {
		return err
	}
	p.sent, p.late = count, late[:writes]
	return <-answered
}

// runInTurn publishes each message when the one before was answered.
func (p *publisher) runInTurn(numbers *numbers) error {
	fd, requests, free, err := p.inC()
	if err != nil {
		return err
	}
	defer free()
	var sent C.int64_t
	err = failed(C.publish_in_turn(fd, &requests[0], C.int64_t(len(requests)), C.int64_t(numbers.most),
		C.int64_t(time.Until(numbers.deadline)), &sent))
	p.sent = int(sent)
	return err
}

// inC takes the connection out of Go's hands, and copies the requests.
func (p *publisher) inC() (fd C.int, requests []C.struct_request, free func(), err error) {
	t, err := takeOver(p.conn)
	if err != nil {
		return 0, nil, nil, err
	}
	p.conn = t
	for _, r := range p.requests {
		requests = append(requests, C.struct_request{
			bytes: (*C.uint8_t)(C.CBytes(r.bytes)), length: C.int64_t(len(r.bytes)), messages: C.int64_t(r.messages),
			first_body: C.int64_t(r.bodies[0]), delay: C.int64_t(r.delay),
		})
	}
	return C.int(t.fd), requests, func() {
		for _, r := range requests {
			C.free(unsafe.Pointer(r.bytes))
		}
	}, nil
}

// runAtMoments starts a consumer that gets so many messages at given moments.
func (c *consumer) runAtMoments(rdy, count int) error {
	if err := c.ready(rdy); err != nil {
		return err
	}
	t, err := takeOver(c.conn)
	if err != nil {
		return err
	}
	c.conn = t
	go func() {
		defer close(c.stopped)
		if err := c.finishAll(t, count); err != nil && !c.over.Load() {
			c.channel.all.fail(fmt.Errorf("consumer of %s: %w", c.channel.name, err))
		}
	}()
	return nil
}

func (c *consumer) finishAll(t *thread, count int) error {
	arrivals := make([]C.struct_arrival, count)
	var came, last C.int64_t
	if err := failed(C.finish_all(C.int(t.fd), &arrivals[0], C.int64_t(count), &came, &last)); err != nil {
		return err
	}
	for _, each := range arrivals[:came] {
		head := C.GoBytes(unsafe.Pointer(&each.head), C.HEAD_SIZE)
		c.numbers = append(c.numbers, number(head))
		c.channel.ages = append(c.channel.ages, int64(each.came)-int64(binary.BigEndian.Uint64(head[numberEnd:])))
	}
	if err := c.channel.note(c.numbers); err != nil {
		return err
	}
	c.channel.all.lastAt.Store(int64(last))
	c.channel.all.received.Store(int64(came))
	return nil
}
