// Package main calls operations of the generated client by name. Each line of standard input is a JSON request, and
// each line of standard output its result: the status, the content and what the client decoded from it.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"

	sfumato "github.com/sfumato-dp/sfumato-go"
)

type request struct {
	URL        string                     `json:"url"`
	Key        string                     `json:"key"`
	Operation  string                     `json:"operation"`
	Path       []string                   `json:"path"`
	Parameters map[string]json.RawMessage `json:"parameters"`
	MediaType  string                     `json:"media_type"`
	Body       []byte                     `json:"body"`
}

type result struct {
	Status  int             `json:"status"`
	Content []byte          `json:"content"`
	Decoded json.RawMessage `json:"decoded"`
}

func call(given request) (result, error) {
	authorize := func(_ context.Context, sent *http.Request) error {
		sent.Header.Set("Authorization", "Bearer "+given.Key)
		return nil
	}
	client, err := sfumato.NewClientWithResponses(given.URL, sfumato.WithRequestEditorFn(authorize))
	if err != nil {
		return result{}, err
	}
	name := strings.ToUpper(given.Operation[:1]) + given.Operation[1:]
	isBinary := given.Body != nil && given.MediaType != "application/json"
	if isBinary {
		name += "WithBody"
	}
	method := reflect.ValueOf(client).MethodByName(name + "WithResponse")
	if !method.IsValid() {
		return result{}, fmt.Errorf("the client has no operation %s", name)
	}
	arguments := []reflect.Value{reflect.ValueOf(context.Background())}
	for _, value := range given.Path {
		arguments = append(arguments, reflect.ValueOf(value))
	}
	fixed := method.Type().NumIn() - 1 // without the editors of requests
	bodies := 0
	if isBinary {
		bodies = 2
	} else if given.Body != nil {
		bodies = 1
	}
	if len(arguments)+bodies < fixed {
		parameters := reflect.New(method.Type().In(len(arguments)).Elem())
		text, _ := json.Marshal(given.Parameters)
		if err := json.Unmarshal(text, parameters.Interface()); err != nil {
			return result{}, err
		}
		arguments = append(arguments, parameters)
	}
	if isBinary {
		reader := io.Reader(bytes.NewReader(given.Body))
		arguments = append(arguments, reflect.ValueOf(given.MediaType), reflect.ValueOf(reader))
	} else if given.Body != nil {
		body := reflect.New(method.Type().In(len(arguments)))
		if err := json.Unmarshal(given.Body, body.Interface()); err != nil {
			return result{}, err
		}
		arguments = append(arguments, body.Elem())
	}
	returned := method.Call(arguments)
	if !returned[1].IsNil() {
		return result{}, returned[1].Interface().(error)
	}
	return read(returned[0].Elem())
}

func read(response reflect.Value) (result, error) {
	found := result{Content: response.FieldByName("Body").Bytes()}
	found.Status = response.FieldByName("HTTPResponse").Interface().(*http.Response).StatusCode
	for index := range response.NumField() {
		name, field := response.Type().Field(index).Name, response.Field(index)
		if strings.Contains(name, "JSON") && !field.IsNil() {
			text, err := json.Marshal(field.Interface())
			if err != nil {
				return result{}, err
			}
			found.Decoded = text
		}
	}
	return found, nil
}

func main() {
	lines := bufio.NewReader(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return
		}
		var given request
		if err := json.Unmarshal(line, &given); err != nil {
			panic(err)
		}
		found, err := call(given)
		if err != nil {
			_ = answers.Encode(map[string]string{"failure": err.Error()})
		} else {
			_ = answers.Encode(found)
		}
	}
}
