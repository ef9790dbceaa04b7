// Calls a berth-server over one channel, rests without a call for longer than the server's keepalive times, calls again,
// leaves a stream before its end, rests and calls once more. It learns the messages from the server's reflection.
//
//	go run . ADDRESS REST OWN_PINGS
//
// REST is a duration. OWN_PINGS is the interval of the client's own pings, without calls too; 0s: none. Prints the texts
// that it got, a line each in JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

const (
	service = "berth.v1.Inference"
	short   = `{"chat": {"messages": [{"role": "user", "content": "What is 23 + 45?"}]}, "sampling": {"temperature": 0}}`
	endless = `{"prompt": "Once", "stopping": {"max_tokens": 300000, "ignore_eos": true}}`
)

// client calls one service over one channel.
type client struct {
	channel *grpc.ClientConn
	methods protoreflect.MethodDescriptors
}

// newClient asks the server what its service looks like.
func newClient(ctx context.Context, channel *grpc.ClientConn) (*client, error) {
	stream, err := reflection.NewServerReflectionClient(channel).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	question := &reflection.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service}
	if err := stream.Send(&reflection.ServerReflectionRequest{MessageRequest: question}); err != nil {
		return nil, err
	}
	answer, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	files := &descriptorpb.FileDescriptorSet{}
	for _, bytes := range answer.GetFileDescriptorResponse().GetFileDescriptorProto() {
		file := &descriptorpb.FileDescriptorProto{}
		if err := proto.Unmarshal(bytes, file); err != nil {
			return nil, err
		}
		files.File = append(files.File, file)
	}
	known, err := protodesc.NewFiles(files)
	if err != nil {
		return nil, err
	}
	found, err := known.FindDescriptorByName(service)
	if err != nil {
		return nil, err
	}
	return &client{channel, found.(protoreflect.ServiceDescriptor).Methods()}, nil
}

// messages makes a method's request from JSON, and an empty answer.
func (c *client) messages(method protoreflect.Name, request string) (in, out *dynamicpb.Message, err error) {
	described := c.methods.ByName(method)
	in, out = dynamicpb.NewMessage(described.Input()), dynamicpb.NewMessage(described.Output())
	return in, out, protojson.Unmarshal([]byte(request), in)
}

func text(message *dynamicpb.Message) string {
	return message.Get(message.Descriptor().Fields().ByName("text")).String()
}

func (c *client) complete(ctx context.Context, request string) (string, error) {
	in, out, err := c.messages("Complete", request)
	if err != nil {
		return "", err
	}
	err = c.channel.Invoke(ctx, "/"+service+"/Complete", in, out)
	return text(out), err
}

// generate streams an answer until its end, or until `ctx` ends. It calls `began` at the first text.
func (c *client) generate(ctx context.Context, request string, began func()) (string, error) {
	in, out, err := c.messages("Generate", request)
	if err != nil {
		return "", err
	}
	stream, err := c.channel.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/"+service+"/Generate")
	if err != nil {
		return "", err
	}
	if err := stream.SendMsg(in); err != nil {
		return "", err
	}
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	all := ""
	for {
		if err := stream.RecvMsg(out); err == io.EOF {
			return all, nil
		} else if err != nil {
			return all, err
		}
		if all == "" && text(out) != "" {
			began()
		}
		all += text(out)
	}
}

// leave reads a stream and cancels it this time after the first text.
func (c *client) leave(ctx context.Context, after time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all, err := c.generate(ctx, endless, func() { time.AfterFunc(after, cancel) })
	if status.Code(err) != codes.Canceled || all == "" {
		return fmt.Errorf("the cancelled stream ended with %v after %d characters", err, len(all))
	}
	return nil
}

func run(address string, rest, pings time.Duration) error {
	ctx := context.Background()
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if pings > 0 {
		parameters := keepalive.ClientParameters{Time: pings, PermitWithoutStream: true}
		options = append(options, grpc.WithKeepaliveParams(parameters))
	}
	channel, err := grpc.NewClient(address, options...)
	if err != nil {
		return err
	}
	defer channel.Close()
	c, err := newClient(ctx, channel)
	if err != nil {
		return err
	}
	print := func(text string, err error) error {
		if err == nil {
			err = json.NewEncoder(os.Stdout).Encode(text)
		}
		return err
	}
	steps := []func() error{
		func() error { return print(c.complete(ctx, short)) },
		func() error { time.Sleep(rest); return print(c.complete(ctx, short)) },
		func() error { time.Sleep(rest); return print(c.generate(ctx, short, func() {})) },
		func() error { return c.leave(ctx, rest/2) },
		func() error { time.Sleep(rest); return print(c.complete(ctx, short)) },
	}
	for number, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", number, err)
		}
	}
	return nil
}

func main() {
	rest, err := time.ParseDuration(os.Args[2])
	if err == nil {
		var pings time.Duration
		if pings, err = time.ParseDuration(os.Args[3]); err == nil {
			err = run(os.Args[1], rest, pings)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
