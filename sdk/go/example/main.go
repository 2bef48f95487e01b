// Package main prints the jobs of a service: SFUMATO_URL=... SFUMATO_KEY=... go run .
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"

	sfumato "github.com/sfumato-dp/sfumato-go"
)

func main() {
	authorize := func(_ context.Context, request *http.Request) error {
		request.Header.Set("Authorization", "Bearer "+os.Getenv("SFUMATO_KEY"))
		return nil
	}
	client, err := sfumato.NewClientWithResponses(os.Getenv("SFUMATO_URL"), sfumato.WithRequestEditorFn(authorize))
	if err != nil {
		log.Fatal(err)
	}
	jobs, err := client.ListJobsWithResponse(context.Background(), &sfumato.ListJobsParams{})
	if err != nil {
		log.Fatal(err)
	}
	switch {
	case jobs.JSON200 != nil:
		for _, job := range jobs.JSON200.Items {
			fmt.Println(job.Id, job.State)
		}
	case jobs.ApplicationproblemJSON401 != nil:
		fmt.Printf("%s: %s\n", jobs.ApplicationproblemJSON401.Code, jobs.ApplicationproblemJSON401.Detail)
	default:
		log.Fatal(jobs.Status())
	}
}
