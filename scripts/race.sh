# Sourced by what runs tests with the race detector. It does not watch the server of tests in fake time and its interpreter of
# Lua: what these do is not about this library, and watching them takes a quarter of the processor.
for server in github.com/alicebob/miniredis github.com/yuin/gopher-lua; do
	GOFLAGS="${GOFLAGS:-} -gcflags=$server/...=-race=false"
done
export GOFLAGS
