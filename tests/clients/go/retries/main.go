// Calls a method of a server again and again over one channel with a service config, and prints the code of each call. The
// config may have a retry policy; the client knows nothing else of retries.
//
//	go run ./retries ADDRESS SERVICE_CONFIG METHOD REQUEST CALLS
//
// REQUEST is the serialised message in base64.
package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// bytes passes messages on as they are.
type bytes struct{}

func (bytes) Marshal(message any) ([]byte, error) { return message.([]byte), nil }
func (bytes) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte{}, data...)
	return nil
}
func (bytes) Name() string { return "proto" }

func run(address, config, method, request string, calls int) error {
	message, err := base64.StdEncoding.DecodeString(request)
	if err != nil {
		return err
	}
	channel, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(config))
	if err != nil {
		return err
	}
	defer channel.Close()
	for range calls {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		var answer []byte
		err := channel.Invoke(ctx, method, message, &answer, grpc.ForceCodec(bytes{}))
		cancel()
		fmt.Println(status.Code(err))
	}
	return nil
}

func main() {
	calls, err := strconv.Atoi(os.Args[5])
	if err == nil {
		err = run(os.Args[1], os.Args[2], os.Args[3], os.Args[4], calls)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
