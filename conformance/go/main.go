// Command gonsq is the official Go client, go-nsq, as a program: it publishes a file line by line, or consumes messages
// into another file.
//
// It answers to the options of conformance/pynsq_client.py and prints the same report, so that one set of tests drives
// both. The format of a body is described there.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
)

func main() {
	programs := map[string]func(arguments []string) (any, error){"publish": publish, "consume": consume}
	if len(os.Args) < 2 || programs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: gonsq publish|consume [options]")
		os.Exit(2)
	}
	report, err := programs[os.Args[1]](os.Args[2:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "gonsq: %v\n", err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		log.Fatal(err)
	}
}

// quiet discards go-nsq's log; failures are returned as errors.
var quiet = log.New(io.Discard, "", 0)
