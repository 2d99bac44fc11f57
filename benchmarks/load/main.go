// Command load puts one nsqd, or with the word lookupd in front one nsqlookupd, under one kind of load and reports what
// the server paid for it; with the word bystander, how long a quiet client waits while other connections abuse nsqd.
//
// Raw sockets and no client library, so that the generator costs a fraction of what it measures; what it costs is in the
// report too. With -client=go-nsq it is NSQ's own library for Go that publishes and consumes, as in the programs that most
// users run: it costs more than the server. A run is a short one to warm up, on a topic of its own, then the measured one. CPU time is read from the
// processes' own clocks when all connections stand and the server rests, and again when the last message is answered and
// the server rests again: start-up is not counted, and what the server puts off is.
//
// A run is only reported when it was correct: every message published came back to every channel exactly once, at its
// first attempt, and the server's own counts agree.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"runtime"
	"time"
)

type options struct {
	tcp, http string
	pid       int
	layers    layers

	publish     string
	publishers  int
	batch       int
	burst       int
	pieces      int
	thread      bool
	outstanding int
	rate        float64
	capacity    float64
	size        int
	spread      bool
	client      string
	churn       bool
	backlog     int
	prefill     bool
	fill        bool
	requeue     bool
	keep        bool

	topics, channels, consumers, rdy int
	uneven, unbuffered               bool
	idle                             int

	warmup, pause, seconds float64
	most                   int
	seed                   int64
}

func parseOptions() options {
	var o options
	flag.StringVar(&o.tcp, "tcp", "", "host:port of nsqd")
	flag.StringVar(&o.http, "http", "", "host:port of its HTTP API")
	flag.IntVar(&o.pid, "pid", 0, "its process")
	flag.BoolVar(&o.layers.tls, "tls", false, "ask for TLS")
	flag.StringVar(&o.layers.compression, "compression", "", "ask for snappy or deflate")
	flag.StringVar(&o.publish, "publish", "pub", "pub, dpub, mpub, http-pub or http-mpub")
	flag.IntVar(&o.publishers, "publishers", 1, "connections that publish")
	flag.IntVar(&o.batch, "batch", 1, "messages in one MPUB")
	flag.IntVar(&o.burst, "burst", 1, "commands in one write")
	flag.IntVar(&o.pieces, "pieces", 0, "the most bytes given to a socket at once, of what is published; 0: any")
	flag.BoolVar(&o.thread, "thread", false, "publish in a thread that Go does not know of, in C")
	flag.IntVar(&o.outstanding, "outstanding", 1, "writes of a connection that wait for their answers")
	flag.Float64Var(&o.rate, "rate", 0, "messages a second, whether answered or not; 0: as fast as they are answered")
	flag.Float64Var(&o.capacity, "capacity", 0, "instead of -rate: the part of what was possible just before, for a second")
	flag.IntVar(&o.size, "size", 200, "bytes of a message")
	flag.BoolVar(&o.spread, "spread", false, "sizes from 50 bytes to 64 KiB, log-normal around 1 KiB, instead of -size")
	flag.StringVar(&o.client, "client", raw, "raw: sockets, or go-nsq: NSQ's library for Go")
	flag.BoolVar(&o.churn, "churn", false, "instead of publishing, -publishers connect, identify themselves and close, again and again")
	flag.BoolVar(&o.prefill, "prefill", false, "publish -most messages first; only the delivery is measured")
	flag.IntVar(&o.backlog, "backlog", 0, "messages that wait already when the rest is published and consumption begins")
	flag.BoolVar(&o.fill, "fill", false, "publish -most messages, and leave them there")
	flag.BoolVar(&o.requeue, "requeue", false, "give each message back once, to be delivered after a delay")
	flag.BoolVar(&o.keep, "keep", false, "do not delete the topic afterwards")
	flag.IntVar(&o.topics, "topics", 1, "which are published to in turn")
	flag.IntVar(&o.channels, "channels", 1, "of each topic")
	flag.IntVar(&o.consumers, "consumers", 0, "connections that consume, on each channel")
	flag.IntVar(&o.rdy, "rdy", 1, "RDY of each")
	flag.BoolVar(&o.uneven, "uneven", false, "halve RDY from channel to channel, seven times, and again from the start")
	flag.BoolVar(&o.unbuffered, "unbuffered", false, "ask for no output buffer")
	flag.IntVar(&o.idle, "idle", 0, "connections that subscribe and do nothing but answer a heartbeat a second")
	flag.Float64Var(&o.warmup, "warmup", 0.5, "seconds")
	flag.Float64Var(&o.pause, "pause", 0, "seconds to wait between connecting and publishing")
	flag.Float64Var(&o.seconds, "seconds", 3, "how long to publish, or to consume what was published first")
	flag.IntVar(&o.most, "most", 1000000, "messages at most")
	flag.Int64Var(&o.seed, "seed", 1, "of the bodies")
	flag.Parse()
	return o
}

func (o options) check() error {
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	case newRequest[o.publish] == nil:
		return fmt.Errorf("no such way to publish: %q", o.publish)
	case o.layers.compression != "" && o.layers.compression != "snappy" && o.layers.compression != "deflate":
		return fmt.Errorf("no such compression: %q", o.layers.compression)
	case o.size < stampEnd:
		return fmt.Errorf("a message needs %d bytes for its number and its time", stampEnd)
	case o.timed() && (o.publish != "pub" && o.publish != "dpub" || o.publishers*o.consumers*o.topics*o.channels != 1):
		return errors.New("-rate and -capacity are for one publisher and one consumer of single messages")
	case o.client != raw && o.client != goNSQ:
		return fmt.Errorf("no such client: %q", o.client)
	case o.client == goNSQ && (o.publish != "pub" && o.publish != "mpub" || o.thread || o.capacity > 0 || o.delayed() || o.pieces > 0):
		return errors.New("-client=go-nsq publishes with PUB and MPUB, and not with -thread, -capacity, -requeue and -pieces")
	case o.spread && (o.publish == "http-mpub" || o.thread || o.timed()):
		return errors.New("-spread goes without -publish=http-mpub, -thread, -rate and -capacity")
	case o.backlog > 0 && (o.prefill || o.timed() || o.topics > 1 || o.consumers == 0):
		return errors.New("-backlog is for consumers of one topic, without -prefill, -rate and -capacity")
	case o.timed() && o.layers != (layers{}):
		return errors.New("-rate and -capacity go without -tls and -compression")
	case o.thread && (o.publish != "pub" || o.publishers*o.burst*o.outstanding*o.topics != 1 || o.prefill ||
		o.timed() || o.layers != (layers{})):
		return errors.New("-thread is for one publisher of single PUBs, without -rate, -capacity, -tls and -compression")
	case o.delayed() && (o.rate == 0 || o.burst != 1 || o.publish == "dpub" && o.requeue):
		return errors.New("-publish=dpub or -requeue goes with -rate, and with single writes")
	case min(o.publishers, o.batch, o.burst, o.outstanding, o.topics, o.channels, o.most) < 1:
		return errors.New("-publishers, -batch, -burst, -outstanding, -topics, -channels and -most start at 1")
	}
	return nil
}

// timed: moments count, not how much can be done.
func (o options) timed() bool { return o.rate > 0 || o.capacity > 0 }

// packed: requests are deflated before the clock starts, since that costs more than what a server does with them. Nobody
// may read their numbers then.
func (o options) packed() bool {
	return o.layers.compression == "deflate" && !o.timed() && !o.prefill && o.consumers == 0
}

// delayed: what is measured is how late messages come that were asked for later.
func (o options) delayed() bool { return o.publish == "dpub" || o.requeue }

func main() {
	var run func() (*report, error)
	var timed bool
	var seconds float64
	if len(os.Args) > 1 && os.Args[1] == "lookupd" {
		o := parseDirectoryOptions(os.Args[2:])
		run, timed, seconds = o.run, o.rate > 0, o.warmup+o.seconds
	} else if len(os.Args) > 1 && os.Args[1] == "bystander" {
		b := parseBystander(os.Args[2:])
		run, seconds = b.run, b.within.Seconds()+b.seconds
	} else {
		o := parseOptions()
		if err := o.check(); err != nil {
			fmt.Fprintf(os.Stderr, "load: %v\n", err)
			os.Exit(2)
		}
		run, timed, seconds = o.run, o.timed(), o.warmup+o.pause+o.seconds
	}
	// One core, and the server has the others. Not so where moments count: a goroutine must not wait for another's turn.
	procs := 1
	if timed {
		procs = 4
	}
	runtime.GOMAXPROCS(procs)
	limit := time.Duration((300 + 20*seconds) * float64(time.Second))
	time.AfterFunc(limit, func() {
		fmt.Fprintf(os.Stderr, "load: no end within %v\n", limit)
		os.Exit(1)
	})
	report, err := run()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(report)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "load: %v\n", err)
		os.Exit(1)
	}
}

func (o options) run() (*report, error) {
	server := &server{pid: o.pid, http: o.http}
	random := rand.New(rand.NewSource(o.seed))
	if o.idle > 0 {
		return o.runIdle(server)
	}
	if o.fill {
		return o.runFill(server, random)
	}
	if o.churn {
		return o.runChurn(server)
	}
	warm := o
	// One topic is enough to warm up what many have in common.
	warm.seconds, warm.most, warm.topics, warm.keep = o.warmup, max(o.most/10, o.batch*o.burst), 1, false
	warm.client, warm.backlog = raw, min(o.backlog, warm.most/2)
	warm.backlog -= warm.backlog % (o.batch * o.burst)
	if o.delayed() {
		warm.publish, warm.requeue, warm.pause = "pub", false, 0
	}
	if _, err := warm.runPhase(server, "warm-up", random); err != nil {
		return nil, fmt.Errorf("warm-up: %w", err)
	}
	capacity := 0.0
	if o.capacity > 0 {
		whole := o
		whole.seconds = 1
		possible, err := whole.runPhase(server, "capacity", random)
		if err != nil {
			return nil, fmt.Errorf("capacity: %w", err)
		}
		capacity = float64(possible.Messages) / possible.Seconds
		o.rate = o.capacity * capacity
	}
	report, err := o.runPhase(server, "measured", random)
	if err == nil {
		report.Asked, report.Capacity = o.rate, capacity
	}
	return report, err
}
