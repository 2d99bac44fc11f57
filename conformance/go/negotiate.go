package main

import (
	"flag"

	"github.com/nsqio/go-nsq"
)

// negotiation holds the settings to request in IDENTIFY.
type negotiation struct {
	rootCA, certificate, compression, authSecret string
}

func (n *negotiation) define(flags *flag.FlagSet) {
	flags.StringVar(&n.rootCA, "tls-root-ca-file", "", "use TLS and trust the authorities in this PEM file")
	flags.StringVar(&n.certificate, "tls-cert", "", "the client's certificate and its key, in one PEM file")
	flags.StringVar(&n.compression, "compression", "", "deflate or snappy")
	flags.StringVar(&n.authSecret, "auth-secret", "", "secret to send with AUTH")
}

// config returns go-nsq's defaults with these settings.
func (n *negotiation) config() (*nsq.Config, error) {
	config := nsq.NewConfig()
	settings := map[string]any{}
	if n.rootCA != "" {
		settings["tls_v1"] = true
		settings["tls_root_ca_file"] = n.rootCA
	}
	if n.certificate != "" {
		settings["tls_cert"] = n.certificate
		settings["tls_key"] = n.certificate
	}
	if n.compression != "" {
		settings[n.compression] = true
	}
	if n.authSecret != "" {
		settings["auth_secret"] = n.authSecret
	}
	for name, value := range settings {
		if err := config.Set(name, value); err != nil {
			return nil, err
		}
	}
	return config, nil
}
