package printable_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
)

func TestText(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"orders:42 ä é \"quoted\"": "orders:42 ä é \"quoted\"",
		"\x1b[2Jgone":              `\x1b[2Jgone`,
		"two\nlines\r\t":           `two\nlines\r\t`,
		"say \"\x07\"":             `say "\a"`,
		"nel\u0085csi\u009b2J":     `nel\u0085csi\u009b2J`,
		"user\u202egnp.exe":        `user\u202egnp.exe`,
		"a\u2066b\u2069":           `a\u2066b\u2069`,
		"zero\u200bwidth\ufeff":    `zero\u200bwidth\ufeff`,
		"tag\U000e0041":            `tag\U000e0041`,
		"nbsp\u00a0line\u2028":     `nbsp\u00a0line\u2028`,
		"\xff\xfe":                 `\xff\xfe`,
		"del\x7f":                  `del\x7f`,
		`\x1b`:                     `\\x1b`,
		"a\u3164b\uffa0\u115f":     `a\u3164b\uffa0\u115f`,
		"\u2800":                   `\u2800`,
		"x\ufe0f\U000e0101\u034f":  `x\ufe0f\U000e0101\u034f`,
		"\u17b4\u180b\u180f":       `\u17b4\u180b\u180f`,
		"\U0001d159\U00016fe4":     `\U0001d159\U00016fe4`,
		"\u2007\u3000\u205f":       `\u2007\u3000\u205f`,
		"😀 e\u0301":                "😀 e\u0301",
		"":                         "",
	} {
		assert.Equal(t, want, printable.Text(given))
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "path=a\\u3164b \"c\\n\"\n", string(printable.Line([]byte("path=a\u3164b \"c\\n\"\n"))))
	assert.Equal(t, "plain ä\n", string(printable.Line([]byte("plain ä\n"))))
}

func TestValid(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "ä\ufffd\x1b", printable.Valid("ä\ufffd\x1b"))
	assert.Equal(t, `a\xff\xfeä`+"\ufffd", printable.Valid("a\xff\xfeä\ufffd"))
}

func TestJSON(t *testing.T) {
	t.Parallel()
	given := map[string]string{"path": "a\x1bb\u009bc\u202ed\U000e0041e\nf<\u00a0>\u3164\u2800\ufe0f ä é \\ \"", "plain": "x"}
	text, err := json.MarshalIndent(given, "", "  ")
	require.NoError(t, err)
	safe := printable.JSON(text)
	for _, r := range strings.ReplaceAll(string(safe), "\n", "") {
		assert.False(t, r < ' ' || strings.ContainsRune("\u009b\u202e\U000e0041\u00a0\u3164\u2800\ufe0f", r), "%U", r)
	}
	assert.Contains(t, string(safe), "ä é")
	var back map[string]string
	require.NoError(t, json.Unmarshal(safe, &back))
	assert.Equal(t, given, back)
}
