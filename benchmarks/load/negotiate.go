package main

import (
	"compress/flate"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"

	"github.com/golang/snappy"
)

// layers are what lies between a connection and its socket, as IDENTIFY asks for it. The zero value is nothing.
type layers struct {
	tls         bool
	compression string // snappy or deflate
}

// compressed is a connection that compresses and decompresses its bytes.
type compressed struct {
	net.Conn
	reader io.Reader
	writer interface {
		io.Writer
		Flush() error
	}
}

func (c *compressed) Read(data []byte) (int, error) { return c.reader.Read(data) }

func (c *compressed) Write(data []byte) (int, error) {
	n, err := c.writer.Write(data)
	if err == nil {
		err = c.writer.Flush()
	}
	return n, err
}

// asked is what IDENTIFY says of it, to be put behind other fields.
func (l layers) asked() string {
	if l == (layers{}) {
		return ""
	}
	return fmt.Sprintf(`,"feature_negotiation":true,"tls_v1":%t,"snappy":%t,"deflate":%t`,
		l.tls, l.compression == "snappy", l.compression == "deflate")
}

// upgrade reads the answer to IDENTIFY and puts on what was asked for; it is an error if the server has not granted it.
func (l layers) upgrade(conn net.Conn) (net.Conn, error) {
	if l == (layers{}) {
		return conn, expectOKs(conn, make([]byte, len(okFrame)))
	}
	var granted struct {
		TLS     bool `json:"tls_v1"`
		Snappy  bool
		Deflate bool
	}
	answer, err := readFrame(conn)
	if err != nil {
		return conn, err
	}
	if err := json.Unmarshal(answer, &granted); err != nil {
		return conn, fmt.Errorf("%q: %w", answer, err)
	}
	if granted.TLS != l.tls || granted.Snappy != (l.compression == "snappy") || granted.Deflate != (l.compression == "deflate") {
		return conn, fmt.Errorf("the server does not grant what was asked for: %s", answer)
	}
	if l.tls {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		if err := expectOKs(conn, make([]byte, len(okFrame))); err != nil {
			return conn, err
		}
	}
	switch l.compression {
	case "snappy":
		conn = &compressed{conn, snappy.NewReader(conn), snappy.NewBufferedWriter(conn)}
	case "deflate":
		writer, err := flate.NewWriter(conn, flate.DefaultCompression)
		if err != nil {
			return conn, err
		}
		conn = &compressed{conn, flate.NewReader(conn), writer}
	default:
		return conn, nil
	}
	return conn, expectOKs(conn, make([]byte, len(okFrame)))
}

// readFrame reads one response and nothing beyond it.
func readFrame(conn net.Conn) ([]byte, error) {
	kind, data, err := readAnyFrame(conn)
	if err == nil && kind != frameResponse {
		return nil, fmt.Errorf("not a response but %q", data)
	}
	return data, err
}

func readAnyFrame(conn net.Conn) (kind uint32, data []byte, err error) {
	header := make([]byte, frameHeader)
	if _, err := io.ReadFull(conn, header); err != nil {
		return 0, nil, err
	}
	data = make([]byte, binary.BigEndian.Uint32(header)-4)
	_, err = io.ReadFull(conn, data)
	return binary.BigEndian.Uint32(header[4:]), data, err
}
