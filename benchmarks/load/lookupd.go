package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"net"
	"strconv"
	"sync"
	"time"
)

// The other load: one nsqlookupd, the nsqd daemons registered with it, and those who ask it.
//
// Every nsqd has the same number of topics, and every topic the same number of nsqd; names, ports and addresses have
// the same length. So all answers of a kind have the same size: one is looked into, of the others the size is compared.
type directoryOptions struct {
	tcp, http string
	pid       int

	nsqds, topics, allTopics int

	ask             string
	clients         int
	fresh           bool
	rate            float64
	warmup, seconds float64
	seed            int64
}

func parseDirectoryOptions(arguments []string) directoryOptions {
	var o directoryOptions
	flags := flag.NewFlagSet("load lookupd", flag.ExitOnError)
	flags.StringVar(&o.tcp, "tcp", "", "host:port of nsqlookupd")
	flags.StringVar(&o.http, "http", "", "host:port of its HTTP API")
	flags.IntVar(&o.pid, "pid", 0, "its process")
	flags.IntVar(&o.nsqds, "nsqds", 1000, "daemons registered with it")
	flags.IntVar(&o.topics, "topics", 200, "topics of each, with a channel")
	flags.IntVar(&o.allTopics, "all-topics", 200, "topics there are; a multiple of -topics")
	flags.StringVar(&o.ask, "ask", "lookup", "lookup, nodes, topics, or register for the daemons' own part")
	flags.IntVar(&o.clients, "clients", 8, "who ask, each awaits its answer before the next question")
	flags.BoolVar(&o.fresh, "fresh", false, "a connection for each question")
	flags.Float64Var(&o.rate, "rate", 0, "questions a second from one client, due whatever is answered; 0: as fast as possible")
	flags.Float64Var(&o.warmup, "warmup", 0.5, "seconds")
	flags.Float64Var(&o.seconds, "seconds", 3, "")
	flags.Int64Var(&o.seed, "seed", 1, "of who is asked for")
	_ = flags.Parse(arguments)
	return o
}

func (o directoryOptions) run() (*report, error) {
	server := &server{pid: o.pid, http: o.http}
	if o.topics < 1 || o.allTopics%o.topics != 0 || o.nsqds*o.topics%o.allTopics != 0 {
		return nil, errors.New("every nsqd must have as many topics, and every topic as many nsqd, as the next")
	}
	begin, err := server.settle()
	if err != nil {
		return nil, err
	}
	peers, err := o.registerAll()
	defer func() {
		for _, peer := range peers {
			peer.Close()
		}
	}()
	registered := time.Now()
	if err != nil {
		return nil, err
	}
	r := &report{Messages: o.nsqds * o.topics, Seconds: registered.Sub(begin.at).Seconds()}
	if o.ask != "register" {
		if r, begin, err = o.askAll(server); err != nil {
			return nil, err
		}
	}
	end, err := server.settle()
	if err != nil {
		return nil, err
	}
	r.spent(begin, end)
	r.RSS, err = server.residentBytes()
	return r, err
}

// --- The daemons ---------------------------------------------------------------------------------------------------

func (o directoryOptions) registerAll() ([]net.Conn, error) {
	const workers = 16
	peers := make([]net.Conn, o.nsqds)
	failures := make(chan error, workers)
	var group sync.WaitGroup
	for worker := 0; worker < workers; worker++ {
		group.Add(1)
		go func(worker int) {
			defer group.Done()
			for i := worker; i < o.nsqds; i += workers {
				var err error
				if peers[i], err = o.register(i); err != nil {
					failures <- fmt.Errorf("nsqd %d: %w", i, err)
					return
				}
			}
		}(worker)
	}
	group.Wait()
	var connected []net.Conn
	for _, peer := range peers {
		if peer != nil {
			connected = append(connected, peer)
		}
	}
	select {
	case err := <-failures:
		return connected, err
	default:
		return connected, nil
	}
}

// register is one nsqd's connection, with everything it has to say in one write.
func (o directoryOptions) register(i int) (net.Conn, error) {
	about := fmt.Sprintf(`{"broadcast_address":"node%06d.example","hostname":"node%06d","http_port":4151,"tcp_port":4150,`+
		`"topology_region":"","topology_zone":"","version":"1.3.0"}`, i, i)
	said := []byte("  V1IDENTIFY\n")
	said = binary.BigEndian.AppendUint32(said, uint32(len(about)))
	said = append(said, about...)
	for j := 0; j < o.topics; j++ {
		said = append(said, fmt.Sprintf("REGISTER %s archive\n", topicName((i*o.topics+j)%o.allTopics))...)
	}
	conn, err := net.Dial("tcp", o.tcp)
	if err != nil {
		return nil, err
	}
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Write(said)
		failed <- err
	}()
	reader := bufio.NewReader(conn)
	for answer := 0; answer <= o.topics; answer++ {
		var size uint32
		if err := binary.Read(reader, binary.BigEndian, &size); err != nil {
			return conn, err
		}
		data := make([]byte, size)
		if _, err := io.ReadFull(reader, data); err != nil {
			return conn, err
		}
		if answer > 0 && string(data) != "OK" {
			return conn, fmt.Errorf("not OK but %q", data)
		}
	}
	return conn, <-failed
}

func topicName(number int) string { return fmt.Sprintf("topic%06d", number) }

// --- Those who ask -------------------------------------------------------------------------------------------------

func (o directoryOptions) askAll(server *server) (*report, reading, error) {
	size, err := o.lookInto()
	if err != nil {
		return nil, reading{}, fmt.Errorf("wrong: %w", err)
	}
	if _, err := o.askFor(o.warmup, size, nil); err != nil {
		return nil, reading{}, fmt.Errorf("warm-up: %w", err)
	}
	begin, err := server.settle()
	if err != nil {
		return nil, begin, err
	}
	ages := make([][]int64, o.clients)
	last, err := o.askFor(o.seconds, size, ages)
	if err != nil {
		return nil, begin, err
	}
	var all []int64
	for _, each := range ages {
		all = append(all, each...)
	}
	return &report{Messages: len(all), Seconds: last.Sub(begin.at).Seconds(), Latency: percentiles(all)}, begin, nil
}

// askFor lets everybody ask for so long, and notes what each answer took.
func (o directoryOptions) askFor(seconds float64, size int, ages [][]int64) (time.Time, error) {
	clients := o.clients
	if o.rate > 0 {
		clients = 1
	}
	failures := make(chan error, clients)
	begin := time.Now()
	deadline := begin.Add(time.Duration(seconds * float64(time.Second)))
	for number := 0; number < clients; number++ {
		c := &client{options: o, random: rand.New(rand.NewSource(o.seed*1000 + int64(number)))}
		go func(number int) {
			defer c.close()
			var err error
			for asked := 0; err == nil; asked++ {
				due := time.Now()
				if o.rate > 0 {
					due = begin.Add(time.Duration(float64(asked) / o.rate * float64(time.Second)))
					time.Sleep(time.Until(due))
				}
				if due.After(deadline) {
					break
				}
				var got int
				if got, err = c.ask(nil); err == nil && got != size {
					err = fmt.Errorf("an answer of %d bytes, not %d", got, size)
				}
				if ages != nil {
					ages[number] = append(ages[number], int64(time.Since(due)))
				}
			}
			failures <- err
		}(number)
	}
	var failure error
	for number := 0; number < clients; number++ {
		if err := <-failures; err != nil {
			failure = fmt.Errorf("client: %w", err)
		}
	}
	return time.Now(), failure
}

// lookInto compares some answers with what was registered, and returns their size.
func (o directoryOptions) lookInto() (int, error) {
	c := &client{options: o, random: rand.New(rand.NewSource(o.seed))}
	defer c.close()
	size := 0
	for i := 0; i < 20; i++ {
		var body bytes.Buffer
		if _, err := c.ask(&body); err != nil {
			return 0, err
		}
		var answer struct{ Channels, Topics, Producers []any }
		if err := json.Unmarshal(body.Bytes(), &answer); err != nil {
			return 0, err
		}
		found := [3]int{len(answer.Channels), len(answer.Topics), len(answer.Producers)}
		expected := map[string][3]int{
			"lookup": {1, 0, o.nsqds * o.topics / o.allTopics},
			"nodes":  {0, 0, o.nsqds},
			"topics": {0, o.allTopics, 0},
		}[o.ask]
		if found != expected {
			return 0, fmt.Errorf("channels, topics and producers in an answer are %v, not %v", found, expected)
		}
		size = body.Len()
	}
	return size, nil
}

// client is one who asks.
type client struct {
	options directoryOptions
	random  *rand.Rand
	conn    net.Conn
	reader  *bufio.Reader
}

// ask returns the size of an answer's body; a copy of it goes to `body`, if there is one.
func (c *client) ask(body io.Writer) (int, error) {
	if c.conn == nil {
		var err error
		if c.conn, err = net.Dial("tcp", c.options.http); err != nil {
			return 0, err
		}
		c.reader = bufio.NewReaderSize(c.conn, readBuffer)
	}
	question := "/" + c.options.ask
	if c.options.ask == "lookup" {
		question += "?topic=" + topicName(c.random.Intn(c.options.allTopics))
	}
	ending := ""
	if c.options.fresh {
		ending = "Connection: close\r\n"
	}
	_, err := fmt.Fprintf(c.conn, "GET %s HTTP/1.1\r\nHost: %s\r\nAccept: application/vnd.nsq; version=1.0\r\n%s\r\n",
		question, c.options.http, ending)
	if err != nil {
		return 0, err
	}
	size, err := readAnswer(c.reader, body)
	if c.options.fresh {
		c.close()
	}
	return size, err
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// readAnswer reads one reply, which must be a 200; with a length or in chunks.
func readAnswer(reader *bufio.Reader, body io.Writer) (int, error) {
	status, err := reader.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if !bytes.HasPrefix(status, []byte("HTTP/1.1 200 ")) {
		return 0, fmt.Errorf("not 200 but %q", status)
	}
	length, chunked := 0, false
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		name, value, found := bytes.Cut(bytes.TrimSpace(line), []byte(": "))
		if !found {
			break
		}
		if bytes.EqualFold(name, []byte("content-length")) {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, err
			}
		}
		chunked = chunked || bytes.EqualFold(name, []byte("transfer-encoding"))
	}
	if !chunked {
		return length, take(reader, length, body)
	}
	for all := 0; ; {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return all, err
		}
		size, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return all, err
		}
		all += int(size)
		if err := take(reader, int(size), body); err != nil {
			return all, err
		}
		if _, err := reader.Discard(len("\r\n")); err != nil || size == 0 {
			return all, err
		}
	}
}

func take(reader *bufio.Reader, size int, body io.Writer) error {
	if body != nil {
		_, err := io.CopyN(body, reader, int64(size))
		return err
	}
	_, err := reader.Discard(size)
	return err
}
