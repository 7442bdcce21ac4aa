package http_test

import (
	"testing"

	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestMain(m *testing.M) { kit.Main(m) }
