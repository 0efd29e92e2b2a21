// Reads Grafana boards, and refuses what Grafana's own types of a board do not know, or lack. Run by tests/charts.
package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

func main() {
	// The kinds of panels and queries that our board has; all of them would take a minute to compile.
	runtime := cog.NewRuntime()
	runtime.RegisterPanelcfgVariant(table.VariantConfig())
	runtime.RegisterPanelcfgVariant(timeseries.VariantConfig())
	runtime.RegisterDataqueryVariant(prometheus.VariantConfig())
	for _, name := range os.Args[1:] {
		if err := check(name); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			os.Exit(1)
		}
	}
}

func check(name string) error {
	raw, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	board := dashboard.Dashboard{}
	// What it returns is a list of errors, and an empty one is no nil.
	if err := board.UnmarshalJSONStrict(raw); err != nil && err.Error() != "" {
		return err
	}
	return board.Validate()
}
