// Reads JSON lines {"logits", "history", "prompt_length", "params": {...}} and answers each with the tokens that the
// sampler keeps and their probabilities: {"kept": [ids], "probabilities": [...]}. For test_sampler_oracle.py.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "models/sampling/sampler.h"

int main() {
  berth::Sampler sampler;
  std::string line;
  while (std::getline(std::cin, line)) {
    const nlohmann::json in = nlohmann::json::parse(line);
    const nlohmann::json& p = in["params"];
    berth::SamplingParams params;
    params.temperature = p.value("temperature", params.temperature);
    params.top_k = p.value("top_k", params.top_k);
    params.top_p = p.value("top_p", params.top_p);
    params.min_p = p.value("min_p", params.min_p);
    params.repetition_penalty = p.value("repetition_penalty", params.repetition_penalty);

    const std::vector<float> logits = in["logits"];
    const std::vector<int32_t> history = in["history"];
    berth::StepRow row;
    row.sampling = &params;
    row.history = history;
    row.prompt_length = static_cast<int64_t>(history.size());
    berth::RowResult result;
    sampler.SampleRow(logits, row, &result);

    nlohmann::json out = {
        {"token", result.token}, {"kept", nlohmann::json::array()}, {"probabilities", nlohmann::json::array()}};
    for (auto [token, probability] : sampler.LastDistribution()) {
      out["kept"].push_back(token);
      out["probabilities"].push_back(probability);
    }
    std::cout << out << std::endl;
  }
}
