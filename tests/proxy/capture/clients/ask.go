// One request, `ask-go default|noproxy URL`. Prints what came back.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	transports := map[string]http.RoundTripper{"default": http.DefaultTransport, "noproxy": &http.Transport{Proxy: nil}}
	client := http.Client{Transport: transports[os.Args[1]]}
	answer, err := client.Get(os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	body, _ := io.ReadAll(answer.Body)
	fmt.Print(string(body))
}
