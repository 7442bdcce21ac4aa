package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockregistry/lockregistry/internal/redistest"
)

const deploy = "../../deploy"

// The alerts fire when they should, and not else, by promtool.
func TestAlerts(t *testing.T) {
	t.Parallel()
	command := exec.CommandContext(t.Context(), "promtool", "test", "rules", "rules_test.yml")
	command.Dir = filepath.Join(deploy, "prometheus")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v (scripts/ensure-prometheus.sh installs promtool)\n%s", err, out)
	}
}

// counting are the panels that show what [use] has happen, once or a few times: their series begin with it.
var counting = regexp.MustCompile(`^(2|3|16|22|30) `)

// Each query of the dashboard, and each alert's, is asked of a Prometheus that scrapes instances of the service, and lockreg.
// The dashboard's must have an answer: a name that is misspelt has none, nor has a classic histogram that Prometheus dropped
// because its metric also has a native one.
func TestDashboard(t *testing.T) {
	t.Parallel()
	program, redis := build(t), redistest.Start(t)
	first, second := start(t, program, redis, patient), start(t, program, redis, patient)
	third := start(t, program, redis, brief)
	watcher := lockreg(t, redis)
	metrics := startPrometheus(t, first.address, second.address, third.address, watcher)

	use(t, redis, first, second, third)
	for name, query := range queries(t) {
		eventually(t, name+" has an answer", time.Minute, func() bool {
			values, err := metrics.ask(query)
			if err != nil {
				t.Fatal(name, err)
			}
			return len(values) > 0 && (!counting.MatchString(name) || slices.Max(values) >= 1)
		})
	}
}

// use has the locks of a service do what is counted: calls that wait, one of the third that finds Redis silent, and a loss.
func use(t *testing.T, redis *redistest.Server, first, second, third *instance) {
	t.Helper()
	var all sync.WaitGroup
	for k := range 100 {
		for _, i := range []*instance{first, second} {
			all.Go(func() {
				if status, text := i.ask(http.MethodPost, fmt.Sprintf("/orders/%d/ship", k%2)); !served(status) {
					t.Error(status, text)
				}
			})
		}
	}
	all.Wait()
	eventually(t, "somebody leads", time.Minute, func() bool { return first.leads() || second.leads() || third.leads() })
	redis.Command(t, "DEL", "shop:dispatcher")
	redis.Freeze()
	if status, text := third.ask(http.MethodPost, "/orders/99/ship"); status != http.StatusServiceUnavailable {
		t.Error("without Redis:", status, text)
	}
	redis.Thaw()
}

// variables are Grafana's. What a panel shows without an answer is left out.
var variables = strings.NewReplacer("$prefix", ".*", "$__rate_interval", "5m", "$__range", "5m", " or vector(0)", "")

// queries returns the dashboard's, by the titles of the panels.
func queries(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deploy, "grafana", "lockregistry.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			ID      int    `json:"id"`
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, p := range dashboard.Panels {
		for n, target := range p.Targets {
			if strings.Contains(target.Expr, "vector(0)") && strings.Contains(target.Expr, "_duration_seconds") {
				t.Errorf("%s shows 0 if Prometheus stores only native histograms: ask for a counter", p.Title)
			}
			all[fmt.Sprintf("%d %s (%d)", p.ID, p.Title, n)] = variables.Replace(target.Expr)
		}
	}
	if len(all) < 20 {
		t.Fatal("the dashboard has few queries:", len(all))
	}
	return all
}

// server is a Prometheus.
type server struct{ address string }

// startPrometheus starts one that scrapes the addresses each half second, and prefers native histograms.
func startPrometheus(t *testing.T, addresses ...string) server {
	t.Helper()
	dir := t.TempDir()
	targets, err := json.Marshal(addresses)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := filepath.Abs(filepath.Join(deploy, "prometheus", "rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf(`{"global": {"scrape_interval": "500ms", "evaluation_interval": "1s"}, "rule_files": [%q],
		"scrape_configs": [{"job_name": "locks", "static_configs": [{"targets": %s}]}]}`, rules, targets)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := server{fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))}
	process := exec.CommandContext(t.Context(), "prometheus", "--config.file="+config,
		"--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+s.address, "--log.level=error", "--enable-feature=native-histograms")
	process.Stderr = os.Stderr
	if err := process.Start(); err != nil {
		t.Fatalf("%v (scripts/ensure-prometheus.sh installs it)", err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	eventually(t, "Prometheus is ready", time.Minute, func() bool {
		status, _, err := s.get("/-/ready")
		return err == nil && status == http.StatusOK
	})
	return s
}

func (s server) get(path string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+path, nil)
	if err != nil {
		return 0, nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err = io.ReadAll(answer.Body)
	return answer.StatusCode, body, err
}

// ask returns the values of a query's series.
func (s server) ask(query string) (values []float64, err error) {
	status, body, err := s.get("/api/v1/query?" + url.Values{"query": {query}}.Encode())
	var answer struct {
		Error string `json:"error"`
		Data  struct {
			Result []struct {
				Value [2]any `json:"value"` // when, and what, as a text
			} `json:"result"`
		} `json:"data"`
	}
	err = errors.Join(err, json.Unmarshal(body, &answer))
	if err == nil && status != http.StatusOK {
		err = errors.New(answer.Error)
	}
	for _, series := range answer.Data.Result {
		value, wrong := strconv.ParseFloat(fmt.Sprint(series.Value[1]), 64)
		values, err = append(values, value), errors.Join(err, wrong)
	}
	return values, err
}

// lockreg starts `lockreg metrics` for the service's locks, and returns its address.
func lockreg(t *testing.T, redis *redistest.Server) (address string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "lockreg")
	built := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	built.Dir = "../../cmd/lockreg"
	built.Env = append(os.Environ(), "GOWORK=off")
	if out, err := built.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	address = fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	process := exec.CommandContext(t.Context(), program, "metrics", "--listen", address, "--every", "500ms", "shop")
	process.Env = append(slices.Clone(os.Environ()), "REDIS_URL=redis://"+redis.Addr())
	process.Stderr = os.Stderr
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	return address
}
