package fault_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// serverThatFails returns a function that returns the error of a command to which a server has replied a text.
func serverThatFails(t *testing.T) (says func(text string) error) {
	t.Helper()
	server := miniredis.RunT(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, DisableCache: true, DisableRetry: true, ForceSingleClient: true,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return func(text string) error {
		server.SetError(text)
		return client.Do(t.Context(), client.B().Get().Key("k").Build()).Error()
	}
}

// What a server does not permit or does not know is refused for good; what it cannot do for now passes, and so may network
// errors.
func TestRefusal(t *testing.T) {
	says := serverThatFails(t)
	for text, refused := range map[string]bool{
		"NOPERM this user has no permissions to run the 'subscribe' command": true,
		"ERR unknown command 'HELLO'":                                        true,
		"ERR unknown subcommand 'TRACKING'":                                  true,
		"ERR max number of clients reached":                                  false,
		"LOADING Redis is loading the dataset in memory":                     false,
		"NOREPLICAS Not enough good replicas to write.":                      false,
		"MOVED 7 127.0.0.1:7001":                                             false,
		"CLUSTERDOWN The cluster is down":                                    false,
		"ERR Script attempted to access a non local key in a cluster node":   false,
		"Attempted to access a non local key in a cluster node":              false,
		"Unable to execute command 'get' in script because undeclared keys were accessed during rehashing of the slot":          false,
		"ERR WAIT cannot be used with replica instances.":                                                                       false,
		"ERR Script attempted to execute a write command while the cluster is down and readonly script: 1f, on @user_script:1.": false,
		"ERR Error running script (call to f_1f2e): @user_script:1: @user_script: 1: " +
			"Lua script attempted to execute a write command while the cluster is down and readonly": false,
		"upstream failure":        false,
		"upstream protocol error": false,
		"no upstream host":        false,
	} {
		err := says(text)
		require.Error(t, err, text)
		require.Equal(t, refused, fault.Refusal(err), text)
		require.Equal(t, !refused, fault.Transient(err), text)
		// Of all these only a proxy leaves open whether the server has executed the command.
		require.Equal(t, strings.HasPrefix(text, "upstream"), fault.OutcomeUnknown(err), text)
	}
	missing := says("")
	for _, err := range []error{nil, io.EOF, errors.New("some"), missing} {
		require.False(t, fault.Refusal(err))
	}
}

// When a server repeats a part of a command that it does not know, it is left out where it may be a password.
func TestPlain(t *testing.T) {
	says := serverThatFails(t)
	for text, want := range map[string]string{
		"ERR unknown command 'AUTH', with args beginning with: 'app' 's3cr":         "unknown command 'AUTH'",
		"ERR unknown command `hello`, with args beginning with: `3`, `AUTH`, `s3c`": "unknown command `hello`",
		"ERR unknown command 'EVALSHA', with args beginning with: 'abc' '1'":        "",
		"WRONGPASS invalid username-password pair or user is disabled.":             "",
	} {
		err := says(text)
		if want == "" {
			require.Equal(t, err, fault.Plain(err))
			require.Equal(t, err, fault.Classify(err))
			continue
		}
		for _, plain := range []error{fault.Plain(err), fault.Classify(err)} {
			require.ErrorContains(t, plain, want)
			require.NotContains(t, plain.Error(), "s3c")
			require.ErrorIs(t, plain, fault.Lasting)
			require.NotErrorIs(t, plain, fault.Unavailable)
			var reply *rueidis.RedisError
			require.NotErrorAs(t, plain, &reply)
		}
	}
	require.NoError(t, fault.Plain(nil))
	require.Equal(t, io.EOF, fault.Plain(io.EOF))
}

// There are few reasons, whatever a server says.
func TestReason(t *testing.T) {
	says := serverThatFails(t)
	for text, want := range map[string]string{
		"READONLY You can't write against a read only replica.":                            "readonly",
		"ERR Error running script (call to f_1): @user_script:1: -OOM command not allowed": "oom",
		"ERR max number of clients reached":                                                "max_number_of_clients",
		"upstream failure":                                                                 "upstream",
		"ERR something of a server that nobody has read of":                                "refused",
	} {
		err := says(text)
		require.Equal(t, want, fault.Reason(fault.AsUnavailable(err)), text)
	}
	for want, err := range map[string]error{
		"no_answer": fault.NoAnswer, "not_sent": fault.NotSent, "late": fault.Late, "unreachable": io.EOF,
	} {
		require.Equal(t, want, fault.Reason(fault.Join(fault.AsUnavailable(err), t.Context().Err())))
	}
	require.Equal(t, "late", fault.Reason(fault.Unproven))
}

func TestIsDenied(t *testing.T) {
	for text, denied := range map[string]bool{
		"NOPERM this user has no permissions to run the 'eval' command":                                              true,
		"ERR The user executing the script can't run this command or subcommand script: 1, on @user_script:1.":       true,
		"ERR The user executing the script can't access at least one of the keys mentioned in the command script: 1": true,
		"ACL failure in script: User x has no permissions to run the 'get' command":                                  true,
		"READONLY You can't write against a read only replica.":                                                      false,
		"ERR unknown command 'EVAL_RO', with args beginning with: 'return 1'":                                        false,
	} {
		require.Equal(t, denied, fault.IsDenied(errors.New(text)), text)
	}
	require.False(t, fault.IsDenied(nil))
}

func TestRefusesInfo(t *testing.T) {
	says := serverThatFails(t)
	for _, text := range []string{
		"ERR unknown subcommand 'INFO'. Try CLIENT HELP.",
		"ERR Unknown subcommand or wrong number of arguments for 'INFO'. Try CLIENT HELP",
		"ERR Syntax error, try CLIENT (LIST | KILL | GETNAME | SETNAME | PAUSE | REPLY)",
		"ERR unknown command 'CLIENT', with args beginning with: 'INFO' ",
		"ERR unknown command `client`, with args beginning with: `INFO`, ",
		"NOPERM User x has no permissions to run the 'client|info' command",
		"NOPERM User hello has no permissions to run the 'client|info' command",
		"NOPERM this user has no permissions to run the 'client' command or its subcommand",
		"unsupported command 'client'",
	} {
		require.True(t, fault.RefusesInfo(says(text)), text)
	}
	for _, text := range []string{
		"NOPERM User client has no permissions to run the 'hello' command",
		"NOPERM this user has no permissions to run the 'select' command or its subcommand",
		"NOPERM User info has no permissions to run the 'client|setname' command",
		"NOAUTH HELLO must be called with the client already authenticated",
		"WRONGPASS invalid username-password pair or user is disabled.",
		"DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the default user.",
		"ERR max number of clients reached",
		"ERR Client sent AUTH, but no password is set",
		"ERR DB index is out of range",
		"LOADING Redis is loading the dataset in memory",
	} {
		require.False(t, fault.RefusesInfo(says(text)), text)
	}
	require.False(t, fault.RefusesInfo(nil))
	require.False(t, fault.RefusesInfo(io.EOF))
	require.False(t, fault.RefusesInfo(fault.NoAnswer))
}
