package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// abuses are the ways in which connections can burden the server, by name.
var abuses = map[string]func() abuser{
	"none":        func() abuser { return none{} },
	"deferred":    func() abuser { return &deferred{} },
	"mpub":        func() abuser { return &requests{options: options{publish: "mpub", publishers: 1, size: 5}} },
	"http-mpub":   func() abuser { return &requests{options: options{publish: "http-mpub", publishers: 4, size: 1}} },
	"bombs":       func() abuser { return &requests{options: bombs, outstanding: 2} },
	"connections": func() abuser { return &connections{} },
	"auth":        func() abuser { return &authorizations{} },
	"stats":       func() abuser { return &statistics{} },
}

// none leaves the quiet client alone with the server until the deadline.
type none struct{}

func (none) prepare(*bystander) error { return nil }

func (none) run(deadline time.Time) (int, error) {
	time.Sleep(time.Until(deadline))
	return 0, nil
}

func (none) check() error { return nil }
func (none) close()       {}

// --- Requests in a loop --------------------------------------------------------------------------------------------

// bombs inflate to -count NOPs each, a thousand times what was sent, and a PUB. Its OK says that all were read.
var bombs = options{publish: "nops", publishers: 5, size: 1, layers: layers{compression: "deflate"}}

// requests are made in a loop by each of so many connections, all the same.
type requests struct {
	options
	outstanding int
	server      *server
	publishers  []*publisher
	answered    int // messages
}

func (r *requests) prepare(b *bystander) error {
	r.server, r.tcp, r.http = b.server, b.tcp, b.server.http
	r.batch, r.burst = b.count, 1
	if err := r.server.createTopic(abuseTopic, nil); err != nil {
		return err
	}
	for i := 0; i < r.options.publishers; i++ {
		p, err := r.newPublisher(i, []string{abuseTopic}, b.random)
		if err != nil {
			return err
		}
		for i := range p.requests {
			p.requests[i].bodies = nil // too short for numbers
		}
		r.publishers = append(r.publishers, p)
	}
	return nil
}

func (r *requests) run(deadline time.Time) (int, error) {
	numbers := &numbers{most: math.MaxInt, deadline: deadline}
	var err error
	r.answered, err = publishAll(r.publishers, func(p *publisher) error { return p.run(numbers, max(r.outstanding, 1)) })
	return r.answered / r.publishers[0].requests[0].messages, err
}

func (r *requests) check() error {
	stats, err := r.server.stats([]string{abuseTopic})
	if err == nil && stats.MessageCount != r.answered {
		err = fmt.Errorf("%d messages were answered, the server says %+v", r.answered, stats)
	}
	return err
}

func (r *requests) close() {
	for _, p := range r.publishers {
		p.conn.Close()
	}
}

// --- Deferred messages ---------------------------------------------------------------------------------------------

// deferred publishes -count messages to be delivered at random moments, on as many connections as consume them.
type deferred struct {
	*phase
	within time.Duration
	count  int
	early  atomic.Int64
}

const (
	deferringConnections = 2
	deferredBurst        = 100
	deferredPatience     = 3 * time.Minute
)

func (d *deferred) prepare(b *bystander) error {
	d.within, d.count = b.within, b.count
	o := options{
		tcp: b.tcp, http: b.server.http, publish: "dpub", publishers: deferringConnections, batch: 1, burst: deferredBurst,
		outstanding: 2, size: b.size, topics: 1, channels: 1, consumers: deferringConnections, rdy: 2500, unbuffered: true,
		most: b.count,
	}
	d.phase = o.newPhase(b.server, abuseTopic)
	d.ages = true
	channel := newChannelTally(abuseChannel, &d.tally, o.most)
	channel.early = &d.early // Go's nsqd forgets the delay of a message that its topic has no room for in memory
	d.channels = append(d.channels, channel)
	if err := b.server.createTopic(abuseTopic, []string{channel.name}); err != nil {
		return err
	}
	if err := d.connectDeferring(b); err != nil {
		return err
	}
	if err := d.connectConsumers(abuseTopic, channel); err != nil {
		return err
	}
	time.Sleep(b.pause)
	return nil
}

// connectDeferring makes every request beforehand, since each message has a delay of its own.
func (d *deferred) connectDeferring(b *bystander) error {
	o := d.options
	o.publish = "pub" // one request, which is not used
	if err := d.connectPublishers(o, b.random); err != nil {
		return err
	}
	body := randomBody(b.size, b.random)
	for _, p := range d.publishers {
		p.requests = nil
		for i := 0; i < d.count/deferringConnections/deferredBurst; i++ {
			var r request
			for j := 0; j < deferredBurst; j++ {
				delay := time.Duration(b.random.Int63n(int64(d.within/time.Millisecond))) * time.Millisecond
				one := request{delay: delay}
				newRequest["dpub"](&one, d.options, abuseTopic, func() []byte { return body })
				r.delays = append(r.delays, delay)
				r.bodies = append(r.bodies, len(r.bytes)+one.bodies[0])
				r.bytes = append(r.bytes, one.bytes...)
				r.messages++
			}
			p.requests = append(p.requests, r)
		}
	}
	return nil
}

func (d *deferred) run(time.Time) (int, error) {
	numbers := &numbers{most: d.count / (deferringConnections * deferredBurst) * (deferringConnections * deferredBurst)}
	var err error
	d.published, err = publishAll(d.publishers, func(p *publisher) error { return p.run(numbers, d.outstanding) })
	if err != nil {
		return 0, err
	}
	return d.published, d.awaitMessages(d.published, time.Now().Add(d.within+deferredPatience))
}

func (d *deferred) check() error {
	if _, err := d.phase.server.settle(); err != nil {
		return err
	}
	return d.phase.check()
}

func (d *deferred) lateness() ([]int64, int64) { return d.channels[0].ages, d.early.Load() }

func (d *deferred) close() {
	if d.phase != nil {
		d.closeAll()
	}
}

// --- Connections ---------------------------------------------------------------------------------------------------

// connections subscribes -count connections, and closes all of them at once.
type connections struct {
	b     *bystander
	conns []net.Conn
}

const abuseChannel = "channel0"

func (c *connections) prepare(b *bystander) error {
	c.b = b
	return b.server.createTopic(abuseTopic, []string{abuseChannel})
}

func (c *connections) run(time.Time) (int, error) {
	for i := 0; i < c.b.count; i++ {
		conn, err := connect(c.b.tcp, layers{}, heartbeatMs, 0)
		if conn != nil {
			c.conns = append(c.conns, conn)
		}
		if err != nil {
			return 0, err
		}
		if err := exchange(conn, []byte("SUB "+abuseTopic+" "+abuseChannel+"\n")); err != nil {
			return 0, err
		}
	}
	time.Sleep(calm)
	count := len(c.conns)
	c.close()
	time.Sleep(time.Duration(c.b.seconds * float64(time.Second)))
	return count, nil
}

func (c *connections) check() error {
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		stats, err := c.b.server.stats([]string{abuseTopic})
		if err != nil {
			return err
		}
		left := stats.channel(abuseChannel).ConsumerCount
		if left == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d closed connections are still consumers", left)
		}
	}
}

func (c *connections) close() {
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

// --- Authorizations ------------------------------------------------------------------------------------------------

type authorization struct {
	Topic       string   `json:"topic"`
	Channels    []string `json:"channels"`
	Permissions []string `json:"permissions"`
}

// serveAuthorizations answers the secret "many" with so many patterns of channels, short ones since an nsqd may bound the size
// of the answer; the last one allows publishing. Any other secret is answered with a single pattern, which allows everything.
func serveAuthorizations(address string, count int) (io.Closer, error) {
	allowed := func(topic string, channels ...string) []authorization {
		return []authorization{{topic, channels, []string{"publish", "subscribe"}}}
	}
	var many []string
	for i := 1; i < count; i++ {
		many = append(many, fmt.Sprintf("^c%05d$", i))
	}
	answers := map[bool][]byte{}
	for isMany, patterns := range map[bool][]authorization{
		true: allowed("^"+abuseTopic+"$", append(many, ".*")...), false: allowed(".*", ".*"),
	} {
		answer, err := json.Marshal(map[string]any{"ttl": 3600, "identity": "load", "identity_url": "", "authorizations": patterns})
		if err != nil {
			return nil, err
		}
		answers[isMany] = answer
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(answers[r.FormValue("secret") == "many"])
		}))
	}()
	return listener, nil
}

// authenticate says whether the secret was granted anything.
func authenticate(conn net.Conn, secret string) (bool, error) {
	var r request
	r.add([]byte("AUTH\n"), size32(len(secret)), []byte(secret))
	if _, err := conn.Write(r.bytes); err != nil {
		return false, err
	}
	kind, answer, err := readAnyFrame(conn)
	if err != nil {
		return false, err
	}
	if kind == frameError && bytes.HasPrefix(answer, []byte("E_AUTH_FAILED")) {
		return false, nil
	}
	if kind != frameResponse {
		return false, fmt.Errorf("AUTH was not answered but %q", answer)
	}
	return true, nil
}

// authorizations has clients connect, authenticate with -count patterns, publish a message if that is granted, and leave. A
// server may refuse so long an answer, but it has to say so.
type authorizations struct {
	b         *bystander
	published atomic.Int64
	answered  atomic.Int64
}

const authenticating = 4

func (a *authorizations) prepare(b *bystander) error {
	a.b = b
	return b.server.createTopic(abuseTopic, nil)
}

func (a *authorizations) run(deadline time.Time) (int, error) {
	failures := make(chan error, authenticating)
	var group sync.WaitGroup
	for i := 0; i < authenticating; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for time.Now().Before(deadline) {
				if err := a.once(); err != nil {
					failures <- err
					return
				}
			}
		}()
	}
	group.Wait()
	select {
	case err := <-failures:
		return 0, err
	default:
		return int(a.answered.Load()), nil
	}
}

func (a *authorizations) once() error {
	conn, err := connect(a.b.tcp, layers{}, -1, 0)
	if err != nil {
		return err
	}
	defer conn.Close()
	granted, err := authenticate(conn, "many")
	if err != nil {
		return err
	}
	a.answered.Add(1)
	if !granted {
		return nil
	}
	var r request
	newRequest["pub"](&r, options{size: 1}, abuseTopic, func() []byte { return []byte("x") })
	if err := exchange(conn, r.bytes); err != nil {
		return err
	}
	a.published.Add(1)
	return nil
}

func (a *authorizations) check() error {
	stats, err := a.b.server.stats([]string{abuseTopic})
	if published := int(a.published.Load()); err == nil && stats.MessageCount != published {
		err = fmt.Errorf("%d messages were answered, the server says %+v", published, stats)
	}
	return err
}

func (a *authorizations) close() {}

// --- Statistics ----------------------------------------------------------------------------------------------------

// statistics asks for the figures of -count topics again and again, and for metrics where the server has them.
type statistics struct {
	b     *bystander
	paths []string
}

func (s *statistics) prepare(b *bystander) error {
	s.b = b
	client := &http.Client{Timeout: patience}
	defer client.CloseIdleConnections()
	for i := 0; i < b.count; i++ {
		target := "http://" + b.server.http + "/topic/create?" + url.Values{"topic": {fmt.Sprintf("%s%d", abuseTopic, i)}}.Encode()
		response, err := client.Post(target, "", nil)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", target, response.Status)
		}
	}
	s.paths = []string{"/stats?format=json"}
	if _, err := s.ask(client, "/metrics"); err == nil {
		s.paths = append(s.paths, "/metrics")
	}
	return nil
}

func (s *statistics) ask(client *http.Client, path string) ([]byte, error) {
	response, err := client.Get("http://" + s.b.server.http + path)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, response.Status)
	}
	return body, err
}

func (s *statistics) run(deadline time.Time) (int, error) {
	client := &http.Client{Timeout: quietPatience}
	defer client.CloseIdleConnections()
	answered := 0
	for ; answered < len(s.paths) || time.Now().Before(deadline); answered++ {
		path := s.paths[answered%len(s.paths)]
		body, err := s.ask(client, path)
		if err != nil {
			return answered, err
		}
		// Metrics may name a part of them.
		if named := bytes.Count(body, []byte(`"topic_name":"`+abuseTopic)); named < s.b.count && answered%len(s.paths) == 0 {
			return answered, fmt.Errorf("%s names %d topics, not %d: %.200s", path, named, s.b.count, body)
		}
	}
	return answered, nil
}

func (s *statistics) check() error { return nil }
func (s *statistics) close()       {}
