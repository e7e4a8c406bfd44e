#include "state/conversions.hpp"

#include <cstring>

#include "backend/weight_bits.hpp"

namespace muonrt {

namespace {

template <class T>
T read_at(const unsigned char* at, size_t index) {
  T out;
  std::memcpy(&out, at + index * sizeof out, sizeof out);
  return out;
}

template <class T>
void write_at(std::vector<unsigned char>& to, size_t index, T value) {
  std::memcpy(to.data() + index * sizeof value, &value, sizeof value);
}

}  // namespace

float value_at(const std::string& dtype, const unsigned char* at) {
  return dtype == "BF16" ? to_f32(read_at<bf16>(at, 0)) : read_at<float>(at, 0);
}

std::vector<unsigned char> scaled(std::span<const unsigned char> values, const std::string& dtype,
                                  double factor) {
  std::vector<unsigned char> out(values.size());
  const bool half = dtype == "BF16";
  const size_t size = half ? 2 : 4;
  for (size_t i = 0; i * size < values.size(); ++i) {
    const double value = double{value_at(dtype, values.data() + i * size)} * factor;
    if (half) {
      write_at(out, i, to_bf16(static_cast<float>(value)));
    } else {
      write_at(out, i, static_cast<float>(value));
    }
  }
  return out;
}

int32_t other_form(int32_t kind) {
  constexpr auto kMaster = static_cast<int32_t>(StateKind::kMaster),
                 kRemainder = static_cast<int32_t>(StateKind::kRemainder);
  return kind == kMaster                                     ? kRemainder
         : kind == kRemainder || kind == StateTensor::kParam ? kMaster
                                                             : -2;
}

std::vector<unsigned char> rounded(std::span<const unsigned char> masters,
                                   const std::string& dtype) {
  if (dtype == "F32") return {masters.begin(), masters.end()};
  std::vector<unsigned char> out(masters.size() / 2);
  for (size_t i = 0; i * 2 < out.size(); ++i)
    write_at(out, i, to_bf16(read_at<float>(masters.data(), i)));
  return out;
}

SplitWeights split_weights(std::span<const unsigned char> masters) {
  const size_t count = masters.size() / 4;
  SplitWeights out;
  out.params.resize(count * 2);
  out.remainders.resize(count * 2);
  for (size_t i = 0; i < count; ++i) {
    const SplitWeight w = split_weight(read_at<float>(masters.data(), i));
    write_at(out.params, i, w.high);
    write_at(out.remainders, i, w.low);
  }
  return out;
}

std::vector<unsigned char> join_weights(std::span<const unsigned char> params,
                                        std::span<const unsigned char> remainders) {
  const size_t count = params.size() / 2;
  std::vector<unsigned char> out(count * 4);
  for (size_t i = 0; i < count; ++i)
    write_at(
        out, i,
        join_weight(read_at<uint16_t>(params.data(), i), read_at<uint16_t>(remainders.data(), i)));
  return out;
}

}  // namespace muonrt
