package connect_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/connect"
)

// The parameter at fault is named, and its value is not: it may be a part of the password.
func TestParse_NamesTheParameterAtFault(t *testing.T) {
	t.Parallel()
	for query, name := range map[string]string{
		"write_timeout=3": "write_timeout", "dial_timeout=s3cret": "dial_timeout", "db=s3cret": "db",
		"skip_verify=s3cret":  "skip_verify",
		"db=1&write_timeout=": "write_timeout",
	} {
		_, err := connect.Parse("rediss://user:s3cret@host:6379?" + query)
		require.ErrorContains(t, err, "has a "+name+" that cannot be read", query)
		require.ErrorContains(t, err, name+"=", query)
		require.NotContains(t, err.Error(), "s3cret")
	}
	for _, address := range []string{"redis://host:6379/x", "redis://user:p@ss?write_timeout=3@host", "redis://a b"} {
		_, err := connect.Parse(address)
		require.ErrorContains(t, err, "the address of Redis cannot be read", address)
	}
}
