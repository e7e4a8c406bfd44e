#include "train/sample.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "train/random.hpp"

namespace muonrt::train {
namespace {

// Returns the first index at which the running sum of softmax(logits / temperature) exceeds u, for
// 0 <= u < 1.
size_t pick(const std::vector<float>& logits, double temperature, double u) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (temperature == 0.0) return static_cast<size_t>(best - logits.begin());
  std::vector<double> weights(logits.size());
  double total = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] =
        std::exp((static_cast<double>(logits[i]) - static_cast<double>(*best)) / temperature);
    total += weights[i];
  }
  double left = u * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0.0) return i;
  }
  return static_cast<size_t>(best - logits.begin());
}

// Returns the length in bytes of the UTF-8 character that starts at `at`, or 0 if it is malformed.
// Overlong forms and surrogates are not checked, because terminals replace them.
size_t utf8_length(const std::string& text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const size_t length = lead >= 0xF0 && lead < 0xF5   ? 4
                        : lead >= 0xE0 && lead < 0xF0 ? 3
                        : lead >= 0xC2 && lead < 0xE0 ? 2
                                                      : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[at + i]) & 0xC0) != 0x80) return 0;
  }
  // U+0080 to U+009F are control characters.
  if (lead == 0xC2 && static_cast<unsigned char>(text[at + 1]) < 0xA0) return 0;
  return length;
}

}  // namespace

std::string sample_text(const Gpt& gpt, const float* const* params, const SampleOptions& options,
                        Workspace& ws) {
  std::string text = "\n";
  std::vector<float> logits(static_cast<size_t>(gpt.config().vocab));
  const auto context = static_cast<size_t>(gpt.config().context);
  for (int64_t i = 0; i < options.bytes && !(options.stops && options.stops()); ++i) {
    const size_t seen = std::min(text.size(), context);
    const auto* last = reinterpret_cast<const uint8_t*>(text.data()) + text.size() - seen;
    gpt.next_logits(params, last, static_cast<int64_t>(seen), logits.data(), ws);
    const auto [words] = draw(options.seed, Stream::kSample, 0, static_cast<uint64_t>(i));
    const double u = static_cast<double>(words[0]) * 0x1p-32;
    text += static_cast<char>(pick(logits, options.temperature, u));
  }
  return text.substr(1);
}

std::string printable(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const bool plain = byte == '\n' || byte == '\t' || (byte >= 0x20 && byte < 0x7F);
    const size_t length = plain ? 1 : utf8_length(text, at);
    if (length == 0) {
      out += '?';
      ++at;
    } else {
      out.append(text, at, length);
      at += length;
    }
  }
  return out;
}

}  // namespace muonrt::train
