#include "train/sample.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "train/model.hpp"

using namespace muonrt::train;
using namespace muonrt::train::test;

namespace {

// A model whose next byte depends only on the last one. The outputs of the layers are zero, so the
// residual stream is the embedding. Embeddings are one-hot vectors, so the head is a table of
// logits.
struct Table {
  Table() : config{1, 256, 1, 8}, gpt(config), params(config), ws(config, 1) {
    for (size_t v = 0; v < 256; ++v) params.values[ParamIndex::kWte][v * 256 + v] = 1.0f;
    for (const auto& spec : gpt.params()) {
      auto& tensor = params.values[size_t(&spec - gpt.params().data())];
      if (spec.role == Role::kVector) std::fill(tensor.begin(), tensor.end(), 1.0f);
    }
  }
  // Sets the logit of `next` after `last`. The norm multiplies the one-hot vector by 16.
  void set(unsigned char last, unsigned char next, double logit) {
    auto& head = params.values[size_t(ParamIndex::head(config))];
    head[size_t(next) * 256 + last] = float(logit / 16.0);
  }
  std::string sample(const SampleOptions& options) {
    return sample_text(gpt, std::as_const(params).pointers().data(), options, ws);
  }

  Config config;
  Gpt gpt;
  Tensors<float> params;
  Workspace ws;
};

}  // namespace

TEST_CASE("train sample: temperature 0 follows the likeliest bytes, until it is stopped",
          "[unit][train]") {
  Table table;
  table.set('\n', 'b', 20.0);
  table.set('a', 'b', 20.0);
  table.set('b', 'c', 20.0);
  table.set('c', 'a', 20.0);
  // The text is longer than the context.
  CHECK(table.sample({21, 0.0, 1}) == "bcabcabcabcabcabcabca");
  int asked = 0;
  CHECK(table.sample({1000, 0.0, 1, [&] { return ++asked > 3; }}) == "bca");
}

TEST_CASE("train sample: frequencies are those of the softmax", "[unit][train]") {
  Table table;
  // After each byte, 'a' is three times as likely as 'b' at temperature 1, and nine times as likely
  // at temperature 0.5.
  for (const unsigned char last : {'\n', 'a', 'b'}) {
    table.set(last, 'a', 40.0 + std::log(3.0));
    table.set(last, 'b', 40.0);
  }
  for (const double temperature : {1.0, 0.5}) {
    const std::string text = table.sample({300, temperature, 77});
    const double share = double(std::count(text.begin(), text.end(), 'a')) / 300.0;
    // The standard error is at most 0.025.
    CHECK(share == Approx(temperature == 1.0 ? 0.75 : 0.9).margin(0.08));
  }
  CHECK(table.sample({30, 1.0, 1}) == table.sample({30, 1.0, 1}));
  CHECK(table.sample({30, 1.0, 1}) != table.sample({30, 1.0, 2}));
}

TEST_CASE("train sample: what a terminal would act on is replaced", "[unit][train]") {
  CHECK(printable("a\tb\n") == "a\tb\n");
  CHECK(printable("\x1b[31mred\x07") == "?[31mred?");
  CHECK(printable("caf\xc3\xa9 \xe2\x82\xac") == "caf\xc3\xa9 \xe2\x82\xac");
  CHECK(printable("\xc3") == "?");
  CHECK(printable("\xc2\x9b"
                  "1m") == "??1m");
  CHECK(printable("\xff\x80x") == "??x");
}
