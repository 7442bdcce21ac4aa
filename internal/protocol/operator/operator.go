// Package operator has the scripts that only programs of operators run. A service that does not import package inspect does not
// have them.
package operator

import (
	_ "embed"

	"github.com/lockregistry/lockregistry/internal/protocol"
)

var (
	//go:embed force_unlock.lua
	forceUnlock string
	//go:embed keys.lua
	keys string
	//go:embed registries.lua
	registries string
)

var (
	// ForceUnlock removes a lock in any format but a semaphore's, see [protocol.Config.ForceUnlock].
	ForceUnlock = protocol.Add("force_unlock", forceUnlock)

	// Keys calls SCAN once.
	Keys = protocol.Add("keys", keys)

	// Registries reads the list of registries that have a record.
	Registries = protocol.Add("registries", registries)
)
