//go:build services

package explain_test

import (
	"os"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store/mongodb"
	"github.com/carillon-scheduler/carillon/store/postgres"
	"github.com/carillon-scheduler/carillon/store/redis"
)

// server returns the URL of a server from the environment, with an option of its own for this test.
func server(t *testing.T, variable, option string) string {
	t.Helper()
	url := os.Getenv(variable)
	if url == "" {
		t.Fatalf("%s must be set to the address of a server", variable)
	}
	join := "?"
	if strings.Contains(url, "?") {
		join = "&"
	}
	return url + join + option + "=" + fresh()
}

// fresh returns a name that nothing else has.
func fresh() string { return "explain_" + strings.ToLower(job.NewToken()) }

func TestPostgres(t *testing.T) {
	t.Parallel()
	s, err := postgres.Open(t.Context(), server(t, "CARILLON_TEST_POSTGRES_URL", "schema"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	liveSituations(t, s)
}

func TestRedis(t *testing.T) {
	t.Parallel()
	s, err := redis.Open(t.Context(), server(t, "CARILLON_TEST_REDIS_URL", "prefix"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	liveSituations(t, s)
}

func TestMongoDB(t *testing.T) {
	t.Parallel()
	uri := os.Getenv("CARILLON_TEST_MONGODB_URI")
	if uri == "" {
		t.Fatal("CARILLON_TEST_MONGODB_URI must be set to the address of a server")
	}
	base, query, _ := strings.Cut(uri, "?")
	url := strings.TrimSuffix(base, "/") + "/" + fresh()
	if query != "" {
		url += "?" + query
	}
	s, err := mongodb.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	liveSituations(t, s)
}
