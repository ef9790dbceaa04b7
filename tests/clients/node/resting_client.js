// Calls a berth-server over one channel, rests without a call for longer than the server's keepalive times, calls again,
// leaves a stream before its end, rests and calls once more. It reads the proto file when it starts.
//
//   node resting_client.js PROTO_FOLDER ADDRESS REST_MS OWN_PINGS_MS
//
// OWN_PINGS_MS is the interval of the client's own pings, without calls too; 0: none. Prints the texts that it got, a
// line each in JSON.
"use strict";

const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const SHORT = {
  chat: { messages: [{ role: "user", content: "What is 23 + 45?" }] },
  sampling: { temperature: 0 },
};
const ENDLESS = { prompt: "Once", stopping: { max_tokens: 300000, ignore_eos: true } };

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const print = (text) => console.log(JSON.stringify(text));

function complete(client, request) {
  return new Promise((resolve, reject) => {
    client.Complete(request, (error, answer) => (error ? reject(error) : resolve(answer.text)));
  });
}

// Streams an answer until its end. With `leaveMs`, it cancels that long after the first text, which must be what ends
// the stream.
function generate(client, request, leaveMs) {
  return new Promise((resolve, reject) => {
    const stream = client.Generate(request);
    let text = "";
    let left = false;
    const leave = () => {
      left = true;
      stream.cancel();
    };
    stream.on("data", (message) => {
      if (leaveMs !== undefined && text === "" && message.text !== "") setTimeout(leave, leaveMs);
      text += message.text;
    });
    stream.on("end", () => (leaveMs === undefined ? resolve(text) : reject(new Error("the stream ended by itself"))));
    stream.on("error", (error) => {
      const cancelled = left && error.code === grpc.status.CANCELLED;
      return cancelled ? resolve(text) : reject(error);
    });
  });
}

async function main(folder, address, restMs, pingsMs) {
  const definition = loader.loadSync("berth/v1/inference.proto", { includeDirs: [folder], keepCase: true, defaults: true });
  const { Inference } = grpc.loadPackageDefinition(definition).berth.v1;
  const pings = { "grpc.keepalive_time_ms": pingsMs, "grpc.keepalive_permit_without_calls": 1 };
  const client = new Inference(address, grpc.credentials.createInsecure(), pingsMs > 0 ? pings : {});
  print(await complete(client, SHORT));
  await wait(restMs);
  print(await complete(client, SHORT));
  await wait(restMs);
  print(await generate(client, SHORT));
  await generate(client, ENDLESS, restMs / 2);
  await wait(restMs);
  print(await complete(client, SHORT));
  client.close();
}

const [folder, address, restMs, pingsMs] = process.argv.slice(2);
main(folder, address, Number(restMs), Number(pingsMs)).catch((error) => {
  console.error(error);
  process.exit(1);
});
