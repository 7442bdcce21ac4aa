package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
)

// redisServer is where the job runs: an embedded server, or the one that REDIS_URL names.
type redisServer struct {
	name   string // without a password
	option rueidis.ClientOption
	close  func()
}

func openRedis(redisURL string) (*redisServer, error) {
	if redisURL == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return nil, fmt.Errorf("cannot start the embedded Redis: %w", err)
		}
		return embeddedRedis(embedded), nil
	}

	option, err := rueidis.ParseURL(redisURL)
	u, malformed := url.Parse(redisURL)
	if err != nil || malformed != nil || cut(u) {
		return nil, errors.New("REDIS_URL is not an address like redis://host:6379, " +
			"with every special character of a password as %XX") // err has the password in it
	}
	option.DisableCache = true // the demo has no use for client-side caching, and servers before version 6 lack it
	server := &redisServer{name: u.Redacted(), option: option, close: func() {}}

	// Try once now, so that a wrong address is the first thing to be said and not one of many errors.
	client, err := server.connect()
	if err != nil {
		return nil, err
	}
	client.Close()
	return server, nil
}

// cut reports whether a password has probably cut an address in two, since it has # or ? in it.
func cut(u *url.URL) bool { return u.Fragment != "" || strings.Contains(u.Path+u.RawQuery, "@") }

func embeddedRedis(embedded *miniredis.Miniredis) *redisServer {
	return &redisServer{
		name: "an embedded Redis",
		option: rueidis.ClientOption{
			InitAddress:       []string{embedded.Addr()},
			DisableCache:      true, // it has no client-side caching
			ForceSingleClient: true, // it talks like a cluster of one, and needs none of a cluster's care
		},
		close: embedded.Close,
	}
}

func (s *redisServer) connect() (rueidis.Client, error) {
	client, err := rueidis.NewClient(s.option)
	if err != nil {
		return nil, fmt.Errorf("cannot reach Redis at %s: %w\n"+
			"Start a server there, correct REDIS_URL, or unset it to use the embedded one", s.name, err)
	}
	return client, nil
}
