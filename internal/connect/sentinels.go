package connect

import "github.com/redis/rueidis"

const (
	sentinelBuffer = 4 << 10 // bytes, of a connection to a Sentinel, each way
	sentinelRing   = 5       // places for commands under way, as a power of two
)

// Sentinels returns how to connect to one of the Sentinels of a client with the options of: as rueidis itself does, over a single
// connection. DialCtxFn is set. InitAddress has the addresses of all of them.
func Sentinels(of *rueidis.ClientOption) rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress: of.InitAddress, ForceSingleClient: true,
		Username: of.Sentinel.Username, Password: of.Sentinel.Password, ClientName: of.Sentinel.ClientName,
		AuthCredentialsFn: of.AuthCredentialsFn, ClientSetInfo: of.ClientSetInfo,
		Dialer: of.Sentinel.Dialer, TLSConfig: of.Sentinel.TLSConfig, DialCtxFn: dialingOf(of),
		ConnWriteTimeout: of.ConnWriteTimeout, DisableTCPNoDelay: of.DisableTCPNoDelay, AlwaysRESP2: of.AlwaysRESP2,
		DisableCache: true, DisableRetry: true, PipelineMultiplex: -1,
		ReadBufferEachConn: sentinelBuffer, WriteBufferEachConn: sentinelBuffer, RingScaleEachConn: sentinelRing,
	}
}
