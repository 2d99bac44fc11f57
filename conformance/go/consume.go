package main

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nsqio/go-nsq"
)

type consumeOptions struct {
	negotiation                                         negotiation
	tcp, lookupdHTTP, topic, channel, out, firstAttempt string
	count, readers, maxInFlight                         int
	msgTimeout, requeue, hold, touch                    time.Duration
	poll, timeout, maxBackoff                           time.Duration
	distinct                                            int
}

type consumeReport struct {
	Finished   int         `json:"finished"`
	Requeued   int         `json:"requeued"`
	Attempts   map[int]int `json:"attempts"`
	ByReader   []int       `json:"by_reader"`
	YoungestMs float64     `json:"youngest_ms"`
	Seconds    float64     `json:"seconds"`
}

// consumption collects the messages of several readers; their handlers run concurrently.
type consumption struct {
	options         consumeOptions
	complete        chan struct{}
	isComplete      bool
	mutex           sync.Mutex
	firstDeliveries map[nsq.MessageID]*nsq.Message
	bodies          [][]byte
	different       map[string]bool
	firstAt, lastAt time.Time
	report          consumeReport
}

func parseConsumeOptions(arguments []string) consumeOptions {
	var o consumeOptions
	flags := flag.NewFlagSet("consume", flag.ExitOnError)
	flags.StringVar(&o.tcp, "tcp", "", "host:port of nsqd")
	flags.StringVar(&o.lookupdHTTP, "lookupd-http", "", "host:port of nsqlookupds, separated by commas: consume from every nsqd they know")
	poll := flags.Int("poll-seconds", 1, "seconds between queries of an nsqlookupd")
	flags.StringVar(&o.topic, "topic", "", "")
	flags.StringVar(&o.channel, "channel", "", "")
	flags.StringVar(&o.out, "out", "", "file for the bodies of finished messages")
	flags.StringVar(&o.firstAttempt, "first-attempt", "finish", "finish, requeue, backoff or late")
	flags.IntVar(&o.count, "count", 0, "messages to finish")
	flags.IntVar(&o.distinct, "distinct", 0, "1: count different bodies instead of messages")
	flags.IntVar(&o.readers, "readers", 1, "connections")
	flags.IntVar(&o.maxInFlight, "max-in-flight", 200, "RDY of each connection")
	milliseconds := map[*time.Duration]*int{
		&o.msgTimeout: flags.Int("msg-timeout-ms", 0, "message timeout requested in IDENTIFY; 0: nsqd's default"),
		&o.requeue:    flags.Int("requeue-ms", 0, "delay of a requeue"),
		&o.hold:       flags.Int("hold-ms", 0, "milliseconds to hold each message before it is answered"),
		&o.touch:      flags.Int("touch-ms", 200, "milliseconds between TOUCHes of a held message"),
	}
	maxBackoff := flags.Int("max-backoff-seconds", 128, "longest back-off")
	seconds := flags.Float64("timeout", 40, "seconds before the program gives up")
	o.negotiation.define(flags)
	_ = flags.Parse(arguments)
	for duration, value := range milliseconds {
		*duration = time.Duration(*value) * time.Millisecond
	}
	o.poll = time.Duration(*poll) * time.Second
	o.maxBackoff = time.Duration(*maxBackoff) * time.Second
	o.timeout = time.Duration(*seconds * float64(time.Second))
	return o
}

func consume(arguments []string) (any, error) {
	options := parseConsumeOptions(arguments)
	c := &consumption{
		options:         options,
		complete:        make(chan struct{}),
		firstDeliveries: map[nsq.MessageID]*nsq.Message{},
		different:       map[string]bool{},
		report:          consumeReport{Attempts: map[int]int{}, ByReader: make([]int, options.readers), YoungestMs: math.Inf(1)},
	}
	consumers := make([]*nsq.Consumer, options.readers)
	for number := range consumers {
		consumer, err := c.connect(number)
		if err != nil {
			return nil, err
		}
		consumers[number] = consumer
	}

	var tooLate error
	select {
	case <-c.complete:
	case <-time.After(options.timeout):
		tooLate = fmt.Errorf("only %d of %d messages within %v", len(c.finished()), options.count, options.timeout)
	}
	if err := os.WriteFile(options.out, bytes.Join(append(c.finished(), nil), []byte("\n")), 0o644); err != nil {
		return nil, err
	}
	if tooLate != nil {
		return nil, tooLate
	}
	// CLS, answered with CLOSE_WAIT: nsqd has then read every FIN.
	for _, consumer := range consumers {
		consumer.Stop()
	}
	for _, consumer := range consumers {
		<-consumer.StopChan
	}
	c.report.Finished = len(c.bodies)
	c.report.Seconds = c.lastAt.Sub(c.firstAt).Seconds()
	return c.report, nil
}

func (c *consumption) connect(number int) (*nsq.Consumer, error) {
	config, err := c.options.negotiation.config()
	if err != nil {
		return nil, err
	}
	config.MaxAttempts = 0
	config.MaxInFlight = c.options.maxInFlight
	config.MsgTimeout = c.options.msgTimeout
	config.LookupdPollInterval = c.options.poll
	config.MaxBackoffDuration = c.options.maxBackoff
	config.BackoffMultiplier = c.options.maxBackoff / 40
	consumer, err := nsq.NewConsumer(c.options.topic, c.options.channel, config)
	if err != nil {
		return nil, err
	}
	consumer.SetLogger(quiet, nsq.LogLevelError)
	handle := nsq.HandlerFunc(func(message *nsq.Message) error { return c.handle(number, message) })
	consumer.AddConcurrentHandlers(handle, c.options.maxInFlight)
	if c.options.lookupdHTTP != "" {
		return consumer, consumer.ConnectToNSQLookupds(strings.Split(c.options.lookupdHTTP, ","))
	}
	if err := consumer.ConnectToNSQD(c.options.tcp); err != nil {
		return nil, fmt.Errorf("no connection to nsqd at %s: %w", c.options.tcp, err)
	}
	return consumer, nil
}

func (c *consumption) handle(number int, message *nsq.Message) error {
	message.DisableAutoResponse()
	c.noteAge(message)
	if message.Attempts == 1 && c.options.firstAttempt != "finish" {
		c.putOff(message)
		return nil
	}
	for end := time.Now().Add(c.options.hold); c.options.hold > 0 && time.Now().Before(end); {
		time.Sleep(min(time.Until(end), c.options.touch))
		message.Touch()
	}
	c.finish(number, message)
	return nil
}

func (c *consumption) noteAge(message *nsq.Message) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	age := float64(time.Now().UnixNano()-message.Timestamp) / 1e6
	c.report.YoungestMs = math.Min(c.report.YoungestMs, age)
}

func (c *consumption) putOff(message *nsq.Message) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	switch c.options.firstAttempt {
	case "late":
		c.firstDeliveries[message.ID] = message
		return
	case "backoff":
		message.Requeue(c.options.requeue)
	default:
		message.RequeueWithoutBackoff(c.options.requeue)
	}
	c.report.Requeued++
}

func (c *consumption) finish(number int, message *nsq.Message) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	message.Finish()
	// A late answer to a delivery that has timed out: nsqd must refuse it and keep the connection.
	if late := c.firstDeliveries[message.ID]; late != nil {
		delete(c.firstDeliveries, message.ID)
		late.Finish()
	}
	c.lastAt = time.Now()
	if len(c.bodies) == 0 {
		c.firstAt = c.lastAt
	}
	c.bodies = append(c.bodies, message.Body)
	c.different[string(message.Body)] = true
	c.report.Attempts[int(message.Attempts)]++
	c.report.ByReader[number]++
	amount := len(c.bodies)
	if c.options.distinct != 0 {
		amount = len(c.different)
	}
	if amount == c.options.count && !c.isComplete {
		c.isComplete = true
		close(c.complete)
	}
}

func (c *consumption) finished() [][]byte {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.bodies[:len(c.bodies):len(c.bodies)]
}
