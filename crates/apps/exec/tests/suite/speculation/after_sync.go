// Writes a line when the name of its parent is "synced".
package main

import (
	"os"
	"strconv"
	"time"
)

func main() {
	name := "/proc/" + strconv.Itoa(os.Getppid()) + "/comm"
	for {
		if text, _ := os.ReadFile(name); string(text) == "synced\n" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	os.Stdout.WriteString("out\n")
}
