package connect

import (
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/redis/rueidis"
)

// secrets are the passwords with which a client authenticates, and user names without a password, which often are passwords
// themselves.
type secrets struct {
	mu  sync.Mutex
	all []string
}

// newSecrets collects the secrets of a client that is about to be made, including what its AuthCredentialsFn returns.
func newSecrets(o *rueidis.ClientOption) *secrets {
	s := &secrets{}
	s.add(o.Username, o.Password)
	s.add(o.Sentinel.Username, o.Sentinel.Password)
	if ask := o.AuthCredentialsFn; ask != nil {
		o.AuthCredentialsFn = func(c rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
			found, err := ask(c)
			s.add(found.Username, found.Password)
			return found, err
		}
	}
	return s
}

// mostSecrets is how many are kept. Open may try several servers, and afterwards the client still asks for credentials.
const mostSecrets = 16

func (s *secrets) add(user, password string) {
	if password == "" {
		password = user
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if password != "" && len(s.all) < mostSecrets {
		s.all = append(s.all, password)
	}
}

// known is how many bytes of a secret's beginning give it away.
const known = 8

// in reports whether a text has a secret in it, or the beginning of one: a server may cut off what it repeats.
func (s *secrets) in(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, secret := range s.all {
		begins := secret[:beginning(secret)]
		quoted := strconv.Quote(begins)
		if strings.Contains(text, begins) || strings.Contains(text, quoted[1:len(quoted)-1]) {
			return true
		}
	}
	return false
}

// beginning is the length of the beginning that gives a secret away. It does not end within a character, since half a character
// is quoted in another way than the whole one.
func beginning(secret string) int {
	n := min(len(secret), known)
	for n > 0 && n < len(secret) && !utf8.RuneStart(secret[n]) {
		n--
	}
	if n == 0 { // the secret is not text at all
		return min(len(secret), known)
	}
	return n
}
