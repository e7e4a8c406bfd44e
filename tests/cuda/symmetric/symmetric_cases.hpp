#pragma once

#include <array>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "cuda/machine.hpp"

// Symmetric products whose results are known exactly. The matrices consist of small integers, so
// the sums are exact in f32.
namespace cuda_test {

/// Returns the implementations that this device supports, except those that the environment
/// variable MUONRT_TEST_LEAVE_OUT names. Use this variable to omit a kernel that hangs, because it
/// would stop all other tests. If no implementation remains, the case is reported as skipped.
inline std::vector<muonrt::SymmetricProvider> symmetric_providers() {
  const char* const named = std::getenv("MUONRT_TEST_LEAVE_OUT");
  const std::string left_out = named ? named : "";
  std::vector<muonrt::SymmetricProvider> list;
  for (const auto& [provider, name] : {std::pair(muonrt::SymmetricProvider::kVendor, "vendor"),
                                       {muonrt::SymmetricProvider::kSm90, "sm90"}}) {
    if (left_out.find(name) != std::string::npos) continue;
    try {
      make_device(provider);
      list.push_back(provider);
    } catch (const muonrt::Error& error) {
      // Any other unsupported feature is a failure.
      if (error.status() != muonrt::Status::kNotSupported ||
          error.message().find("compute capability") == std::string::npos)
        throw;
    }
  }
  if (list.empty()) leave_out("no implementation (because of MUONRT_TEST_LEAVE_OUT)");
  return list;
}

/// Number of reserved SMs with which a grid has two blocks. It is larger than the number of SMs of
/// any GPU.
constexpr int kAllButTwo = 1000;

/// An implementation, and the grid on which it runs.
struct SymmetricKind {
  muonrt::SymmetricProvider provider;
  int reserved_sms = 0;
  std::optional<bool> pairs = {};  // see Sm90Tuning

  std::string name() const {
    return muonrt::cat(name_of(provider), reserved_sms > 0 ? ", a grid of two blocks" : "",
                       pairs ? ", pairs" : "");
  }
  std::unique_ptr<muonrt::Device> device() const {
    return make_device(provider, reserved_sms, {.pairs = pairs});
  }
};

/// Returns all implementations. The implementation for sm_90a also runs on two blocks, as on the
/// emulated GPU. On all SMs of a GPU, it would compute most of the tests' results with small tiles,
/// because the results are small. The large tiles would then not be tested. On two blocks, it uses
/// pairs, which narrow results do not use by default.
inline std::vector<SymmetricKind> symmetric_kinds() {
  std::vector<SymmetricKind> kinds;
  for (const muonrt::SymmetricProvider provider : symmetric_providers()) {
    const bool own = provider == muonrt::SymmetricProvider::kSm90;
    if (!own || !is_emulated()) kinds.push_back({provider});
    if (own) kinds.push_back({provider, is_emulated() ? 0 : kAllButTwo, true});
  }
  return kinds;
}

struct SymmetricCase {
  int64_t n, k, count = 1;
  bool with_d = false;
  float alpha = 1.0f, beta = 0.0f, gamma = 0.0f;
  // Whether B = A * S for a diagonal matrix S. Then B differs from A, but the result is symmetric.
  bool two_operands = false;
  muonrt::DType dtype = muonrt::DType::kBF16;

  std::string name() const {
    return muonrt::cat(n, " x ", n, " x ", k, ", ", count, " matrices, beta ", beta, ", gamma ",
                       gamma, two_operands ? ", two operands" : "");
  }
};

/// The four epilogues are: only the sum, the sum with D, the sum with D and all scales, and the sum
/// with a B that differs from A.
constexpr int kEpilogues = 4;
/// Returns a case whose epilogue and dtype depend on `turn`.
inline SymmetricCase case_of(int64_t n, int64_t k, int64_t count, int64_t turn) {
  SymmetricCase c{n, k, count};
  const int64_t epilogue = turn % kEpilogues;
  if (epilogue == 1) c.with_d = true, c.beta = 3.0f;
  if (epilogue == 2) c.with_d = true, c.alpha = -2.0f, c.beta = 1.0f, c.gamma = 7.0f;
  if (epilogue == 3) c.two_operands = true, c.gamma = -5.0f;
  if (turn / kEpilogues % 2 == 1) c.dtype = muonrt::DType::kF16;
  return c;
}

/// Returns sizes close to the edges of all tiles (64, 128, 192 and 256 columns), for results of one
/// tile and of several tiles. Each size occurs with three depths, which are close to multiples of a
/// stage (64 terms) and of the ring (four stages). Each epilogue occurs with each class of depths
/// in small, medium and large results.
inline std::vector<SymmetricCase> edge_cases() {
  constexpr std::array<std::array<int64_t, 4>, 3> kDepths = {
      {{1, 31, 33, 64}, {65, 128, 130, 191}, {193, 256, 257, 330}}};
  std::vector<SymmetricCase> cases;
  int64_t turn = 0;
  for (const int64_t n : {1,   2,   7,   8,   9,   31,  63,  64,  65,  101, 127, 128, 129,
                          191, 192, 193, 255, 256, 257, 384, 385, 449, 513, 577, 600})
    for (const auto& depths : kDepths) {
      const int64_t count = n <= 257 ? 1 + turn / 3 % 4 : 1;
      cases.push_back(case_of(n, depths[static_cast<size_t>(turn / 6 % 4)], count, turn));
      ++turn;
    }
  return cases;
}

/// Returns one case for each n up to 600 and each batch of 1 to 4, with depths of up to 330.
inline std::vector<SymmetricCase> all_cases() {
  std::vector<SymmetricCase> cases;
  for (int64_t n = 1; n <= 600; ++n)
    for (int64_t count = 1; count <= 4; ++count) {
      const uint64_t drawn = bits_at(1, n * 4 + count) >> 33;
      const int64_t depth = 1 + static_cast<int64_t>(drawn / 8 % (drawn % 4 == 0 ? 330 : 64));
      cases.push_back(case_of(n, depth, count, static_cast<int64_t>(drawn % 8)));
    }
  return cases;
}

/// Returns cases for the large tiles of sm_90a on all 132 SMs (H100, H200), or on the 124 SMs that
/// NCCL leaves free. bf16 and f16 can represent the values exactly.
inline std::vector<SymmetricCase> large_cases() {
  return {
      // Pairs. The right half of the last cell (a box of D) is completely outside of the result.
      {1081, 200, 12, true, -2.0f, 1.0f, 7.0f},
      {1288, 136, 10, false, 1.0f, 0.0f, -5.0f, true},
      // Without pairs: a batch, and a single matrix.
      {577, 72, 8, true, -2.0f, 1.0f, 7.0f},
      {1601, 72},
      // Only squares, with the depth cut into two slices.
      {381, 1090, 40, true, 1.0f, -3.0f, 9.0f},
  };
}

/// Returns cases for the medium tiles on 132 and on 124 SMs.
inline std::vector<SymmetricCase> medium_cases() {
  return {
      {2000, 200, 1, true, -2.0f, 1.0f, 7.0f},
      {2177, 200, 1, false, 1.0f, 0.0f, -5.0f, true},
      // In the first case, the third square of the last tile (a box of D) is completely outside of
      // the result. In the second case, all squares of the last tile except one are outside.
      {650, 330, 8, true, 1.0f, -3.0f, 9.0f},
      {1025, 72, 4},
  };
}

/// Returns the bits of an integer of at most 8 bits, in one of the two 16-bit types.
inline uint16_t half_of(int value, muonrt::DType dtype) {
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  if (dtype == muonrt::DType::kBF16 || value == 0) return static_cast<uint16_t>(bits >> 16);
  return static_cast<uint16_t>((bits >> 16 & 0x8000u) |
                               ((bits & 0x7fffffffu) - (112u << 23)) >> 13);
}

/// Returns the f16 value nearest to an integer below 4096. Values of 2048 and above are multiples
/// of 2, and ties are rounded to even.
inline uint16_t nearest_f16(int value) {
  const bool between = std::abs(value) > 2048 && value % 2 != 0;
  return half_of(
      between ? value + (std::abs(value) % 4 == 1 ? -1 : 1) * (value < 0 ? -1 : 1) : value,
      muonrt::DType::kF16);
}

/// A batch of integers in memory, with gaps between rows and matrices that are filled with `gap`.
struct IntegerBatch {
  IntegerBatch(const SymmetricCase& c, int64_t cols)
      : rows(c.n),
        width(cols),
        ld((cols + 31) / 32 * 32 + 32),
        stride(c.n * ld + 64),
        values(static_cast<size_t>(c.count * c.n * cols)) {}

  int& at(int64_t matrix, int64_t row, int64_t col) {
    return values[static_cast<size_t>((matrix * rows + row) * width + col)];
  }
  /// Returns the batch in memory.
  /// @param round  Returns the bits of a value.
  template <class Rounding>
  std::vector<uint16_t> memory(int64_t count, uint16_t gap, const Rounding& round) const {
    std::vector<uint16_t> out(static_cast<size_t>(count * stride), gap);
    for (int64_t m = 0; m < count; ++m)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < width; ++j)
          out[static_cast<size_t>(m * stride + r * ld + j)] =
              round(values[static_cast<size_t>((m * rows + r) * width + j)]);
    return out;
  }
  muonrt::MatrixBatch view(void* data, muonrt::DType dtype, int64_t count) const {
    return {data, dtype, rows, width, ld, count, stride};
  }

  int64_t rows, width, ld, stride;
  std::vector<int> values;
};

/// The numbers of a case: the operands, and the result C, computed with integers.
struct SymmetricNumbers {
  SymmetricNumbers(const SymmetricCase& c, uint64_t seed)
      : a(c, c.k), b(c, c.k), d(c, c.n), out(c, c.n) {
    const auto small = [&](int64_t index, int range) {
      return static_cast<int>(bits_at(seed, index) >> 40) % (2 * range + 1) - range;
    };
    for (int64_t m = 0; m < c.count; ++m) {
      for (int64_t r = 0; r < c.n; ++r) {
        for (int64_t j = 0; j < c.k; ++j) {
          a.at(m, r, j) = small((m * c.n + r) * c.k + j, 2);
          b.at(m, r, j) = a.at(m, r, j) * (c.two_operands ? static_cast<int>(j % 5) - 1 : 1);
        }
        for (int64_t j = 0; c.with_d && j <= r; ++j)
          d.at(m, r, j) = d.at(m, j, r) = small(-1 - (m * c.n + r) * c.n - j, 100);
      }
      multiply(c, m);
    }
  }

  IntegerBatch a, b, d, out;

 private:
  /// Computes the sums of products in f32, which is exact for these values and faster than
  /// integers.
  void multiply(const SymmetricCase& c, int64_t m) {
    std::vector<float> columns(static_cast<size_t>(c.k * c.n)), sums(static_cast<size_t>(c.n));
    for (int64_t r = 0; r < c.n; ++r)
      for (int64_t j = 0; j < c.k; ++j)
        columns[static_cast<size_t>(j * c.n + r)] = static_cast<float>(b.at(m, r, j));
    for (int64_t r = 0; r < c.n; ++r) {
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (int64_t i = 0; i < c.k; ++i) {
        const auto factor = static_cast<float>(a.at(m, r, i));
        const float* column = columns.data() + i * c.n;
        for (int64_t j = 0; j <= r; ++j) sums[static_cast<size_t>(j)] += factor * column[j];
      }
      for (int64_t j = 0; j <= r; ++j) {
        int sum = static_cast<int>(c.alpha) * static_cast<int>(sums[static_cast<size_t>(j)]);
        if (c.with_d) sum += static_cast<int>(c.beta) * d.at(m, r, j);
        if (r == j) sum += static_cast<int>(c.gamma);
        out.at(m, r, j) = out.at(m, j, r) = sum;
      }
    }
  }
};

/// One product on a device, and the expected contents of C's memory, including the gaps.
class SymmetricTrial {
 public:
  SymmetricTrial(Machine& machine, const SymmetricCase& c, uint64_t seed)
      : SymmetricTrial(machine, c, SymmetricNumbers(c, seed)) {}
  SymmetricTrial(Machine& machine, const SymmetricCase& c, const SymmetricNumbers& numbers)
      : count_(c.count) {
    // The gaps of operands are NaN, and the gaps of C must not change.
    constexpr uint16_t kNan = 0x7fff, kKeep = kKeepByte * 0x101;
    const IntegerBatch &a = numbers.a, &b = numbers.b, &d = numbers.d, &out = numbers.out;
    const auto exact = [&](int value) { return half_of(value, c.dtype); };
    const auto rounded = [&](int value) {
      const auto x = static_cast<float>(value);
      return c.dtype == muonrt::DType::kBF16 ? muonrt::to_bf16(x).bits : nearest_f16(value);
    };
    product.a = a.view(machine.put(a.memory(c.count, kNan, exact)), c.dtype, c.count);
    product.b = product.a;
    if (c.two_operands)
      product.b = b.view(machine.put(b.memory(c.count, kNan, exact)), c.dtype, c.count);
    if (c.with_d) product.d = d.view(machine.put(d.memory(c.count, kNan, exact)), c.dtype, c.count);
    product.c = out.view(
        machine.put(std::vector<uint16_t>(static_cast<size_t>(c.count * out.stride), kKeep)),
        c.dtype, c.count);
    expected_ = out.memory(c.count, kKeep, rounded);
    product.transpose_b = product.symmetric = true;
    product.alpha = c.alpha;
    product.beta = c.beta;
    product.gamma = c.gamma;
  }

  /// Restores the initial contents of C's memory, so that another device of the same GPU can
  /// compute C.
  void wipe(Machine& machine) const {
    machine.ops().fill(machine.on(), product.c.data, kKeepByte, 2 * count_ * product.c.stride);
  }
  std::vector<uint16_t> result(Machine& machine) const {
    return machine.get(static_cast<const uint16_t*>(product.c.data), count_ * product.c.stride);
  }
  /// Returns the number of elements in C's memory that differ from the expected values.
  int64_t wrong(Machine& machine) const {
    const auto got = result(machine);
    int64_t different = 0;
    for (size_t i = 0; i < got.size(); ++i) different += got[i] != expected_[i];
    return different;
  }

  muonrt::Product product;

 private:
  static constexpr unsigned char kKeepByte = 0x5a;
  int64_t count_;
  std::vector<uint16_t> expected_;
};

}  // namespace cuda_test
