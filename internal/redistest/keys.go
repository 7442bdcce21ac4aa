package redistest

import (
	"bytes"
	"os"
	"testing"
)

// WatchKeys is put in front of a script in tests. It reports each key that the script touches and that is not among KEYS: to
// the log of a server, which then fails its test, and to miniredis by the command [Undeclared]. Redis asks scripts to declare
// all keys; some other servers and proxies refuse the rest.
//
// Two exceptions, see docs/wire-format.md:
//   - The keys of other readers' leases: only the hash, or a ticket, names them. Redisson chose the names.
//   - Where the server refuses keys beside the lock's, so that the script runs with that key alone: the fencing counter, which
//     is then named by an argument, and the key of the reader's own lease.
const WatchKeys = `local redis = (function()
  local real, declared = redis, {}
  for _, key in ipairs(KEYS) do
    declared[key] = true
  end
  for _, argument in ipairs(#KEYS == 1 and ARGV or {}) do
    declared[argument] = true
  end
  local keyless = {TIME = 1, PUBLISH = 1, SPUBLISH = 1, PUBSUB = 1, SCRIPT = 1, SCAN = 1, INFO = 1}
  local several = {DEL = 1, UNLINK = 1, EXISTS = 1}
  local function check(command, ...)
    if keyless[command] then
      return
    end
    for i, key in ipairs({...}) do
      if not declared[key] then
        local reader = string.match(key, ':([^:]*:[^:]*):rwlock_timeout:%d+$')
        local own = reader and #KEYS > 1 and string.sub(ARGV[1] or '', -#reader) == reader and
          ((ARGV[2] or '') == '' or string.find(key, ARGV[2], 1, true) ~= 1) -- force_unlock.lua is told a name from the hash
        if own or not reader then
          local report = 'UNDECLARED ' .. command .. ' ' .. key .. ', declared: ' .. table.concat(KEYS, ' ')
          real.log(real.LOG_WARNING, report)
          real.pcall('UNDECLARED', report)
        end
      end
      if not several[command] then
        return
      end
    end
  end
  return setmetatable({
    call = function(...)
      check(...)
      return real.call(...)
    end,
    pcall = function(...)
      check(...)
      return real.pcall(...)
    end,
  }, {__index = real})
end)()
`

// Undeclared is the command by which [WatchKeys] reports on miniredis. A test registers it.
const Undeclared = "UNDECLARED"

// judge fails a test for what WatchKeys has reported.
func (s *Server) judge(tb testing.TB) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := os.ReadFile(s.outputPath())
	if err != nil {
		return // the server is stopped, and its directory removed
	}
	for line := range bytes.Lines(text) {
		if _, report, found := bytes.Cut(line, []byte(Undeclared+" ")); found {
			tb.Errorf("a script touches a key that it has not declared: %s", report)
		}
	}
}
