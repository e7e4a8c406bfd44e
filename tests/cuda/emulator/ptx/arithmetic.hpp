#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cuda/kernels/ptx_clock.cuh"
#include "cuda/kernels/ptx_half.cuh"
#include "ptx/program.hpp"

// The effects that instructions of a single thread have on registers. arithmetic.cpp lists the
// names of the instructions. Source: PTX ISA 9.0, section 9.7.

namespace emulator::ptx {

template <class T>
struct Name;
#define MUONRT_TYPE_NAME(type, text)             \
  template <>                                    \
  struct Name<type> {                            \
    static std::string of() { return "." text; } \
  }
MUONRT_TYPE_NAME(int8_t, "s8");
MUONRT_TYPE_NAME(uint8_t, "u8");
MUONRT_TYPE_NAME(int16_t, "s16");
MUONRT_TYPE_NAME(uint16_t, "u16");
MUONRT_TYPE_NAME(int32_t, "s32");
MUONRT_TYPE_NAME(uint32_t, "u32");
MUONRT_TYPE_NAME(int64_t, "s64");
MUONRT_TYPE_NAME(uint64_t, "u64");
MUONRT_TYPE_NAME(float, "f32");
MUONRT_TYPE_NAME(double, "f64");
#undef MUONRT_TYPE_NAME

template <class T>
constexpr int kBits = static_cast<int>(8 * sizeof(T));

template <class T, T (*kOf)(T)>
void one(Thread& t, const Instruction& i) {
  t.set<T>(i.at[0], kOf(t.get<T>(i.at[1])));
}
template <class T, T (*kOf)(T, T)>
void two(Thread& t, const Instruction& i) {
  t.set<T>(i.at[0], kOf(t.get<T>(i.at[1]), t.get<T>(i.at[2])));
}
template <class T, T (*kOf)(T, T, T)>
void three(Thread& t, const Instruction& i) {
  t.set<T>(i.at[0], kOf(t.get<T>(i.at[1]), t.get<T>(i.at[2]), t.get<T>(i.at[3])));
}

// Integers are computed with enough bits and then truncated.
template <class T>
T wrap(std::make_unsigned_t<T> value) {
  return static_cast<T>(value);
}
template <class T>
using Bits = std::make_unsigned_t<T>;

template <class T>
T sum(T a, T b) {
  return wrap<T>(static_cast<Bits<T>>(static_cast<Bits<T>>(a) + static_cast<Bits<T>>(b)));
}
template <class T>
T difference(T a, T b) {
  return wrap<T>(static_cast<Bits<T>>(static_cast<Bits<T>>(a) - static_cast<Bits<T>>(b)));
}
template <class T>
T product(T a, T b) {
  const uint64_t wide = static_cast<uint64_t>(a) * static_cast<uint64_t>(b);
  return static_cast<T>(wide);
}
template <class T>
T product_and_sum(T a, T b, T c) {
  return sum(product(a, b), c);
}
template <class T>
T quotient(T a, T b) {
  if (b == 0) throw std::logic_error("a division by zero");
  return static_cast<T>(a / b);
}
template <class T>
T rest(T a, T b) {
  if (b == 0) throw std::logic_error("a division by zero");
  return static_cast<T>(a % b);
}
template <class T>
T least(T a, T b) {
  return std::min(a, b);
}
template <class T>
T largest(T a, T b) {
  return std::max(a, b);
}
/// Processes the two numbers of a word separately.
template <class Half, Half (*kOf)(Half, Half)>
uint32_t halves(uint32_t a, uint32_t b) {
  const auto low = kOf(static_cast<Half>(a), static_cast<Half>(b));
  const auto high = kOf(static_cast<Half>(a >> 16), static_cast<Half>(b >> 16));
  return uint32_t{static_cast<uint16_t>(high)} << 16 | static_cast<uint16_t>(low);
}
template <class T>
T negated(T a) {
  return difference(T{0}, a);
}
template <class T>
T magnitude(T a) {
  return a < 0 ? negated(a) : a;
}
template <class T>
T both(T a, T b) {
  return a & b;
}
template <class T>
T either(T a, T b) {
  return a | b;
}
template <class T>
T differing(T a, T b) {
  return a ^ b;
}
template <class T>
T inverted(T a) {
  return static_cast<T>(~a);
}
template <class T>
void shifted_left(Thread& t, const Instruction& i) {
  const uint32_t by = t.get<uint32_t>(i.at[2]);
  t.set<T>(i.at[0], by >= kBits<T> ? T{0} : static_cast<T>(t.get<T>(i.at[1]) << by));
}
/// Shifts right. The free bits become copies of the sign.
template <class T>
void shifted_right(Thread& t, const Instruction& i) {
  const uint32_t by = t.get<uint32_t>(i.at[2]);
  const T value = t.get<T>(i.at[1]);
  const T gone = value < T{0} ? static_cast<T>(-1) : T{0};
  t.set<T>(i.at[0], by >= kBits<T> ? gone : static_cast<T>(value >> by));
}
template <class Narrow, class Wide>
void product_wide(Thread& t, const Instruction& i) {
  t.set<Wide>(i.at[0], static_cast<Wide>(static_cast<Wide>(t.get<Narrow>(i.at[1])) *
                                         static_cast<Wide>(t.get<Narrow>(i.at[2]))));
}
inline void leading_zeros(Thread& t, const Instruction& i) {
  t.set<uint32_t>(i.at[0], static_cast<uint32_t>(std::countl_zero(t.get<uint32_t>(i.at[1]))));
}
/// Selects bytes of a (0 to 3) and b (4 to 7) with the nibbles of a selector. Bit 3 of a nibble
/// replicates the sign of the byte.
inline void permuted(Thread& t, const Instruction& i) {
  const uint64_t bytes = uint64_t{t.get<uint32_t>(i.at[2])} << 32 | t.get<uint32_t>(i.at[1]);
  const uint32_t selector = t.get<uint32_t>(i.at[3]);
  uint32_t made = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t choice = selector >> (4 * k) & 0xf;
    auto byte = static_cast<uint32_t>(bytes >> (8 * (choice & 7)) & 0xff);
    if (choice & 8) byte = byte & 0x80 ? 0xff : 0;
    made |= byte << (8 * k);
  }
  t.set<uint32_t>(i.at[0], made);
}
/// Inserts the lowest bits of a into b.
template <class T>
void inserted(Thread& t, const Instruction& i) {
  const uint32_t first = t.get<uint32_t>(i.at[3]) & 0xff, count = t.get<uint32_t>(i.at[4]) & 0xff;
  T made = t.get<T>(i.at[2]);
  const T a = t.get<T>(i.at[1]);
  for (uint32_t k = 0; k < count && first + k < kBits<T>; ++k) {
    const T bit = T{1} << (first + k);
    made = static_cast<T>((made & ~bit) | (a >> k & 1 ? bit : T{0}));
  }
  t.set<T>(i.at[0], made);
}

// Each floating-point operation rounds to nearest.
template <class T>
T plus(T a, T b) {
  return a + b;
}
template <class T>
T minus(T a, T b) {
  return a - b;
}
template <class T>
T times(T a, T b) {
  return a * b;
}
template <class T>
T over(T a, T b) {
  return a / b;
}
template <class T>
T fused(T a, T b, T c) {
  return std::fma(a, b, c);
}
template <class T>
T root(T a) {
  return std::sqrt(a);
}
template <class T>
T inverse(T a) {
  return 1 / a;
}
template <class T>
T opposite(T a) {
  return -a;
}
template <class T>
T size_of(T a) {
  return std::fabs(a);
}
template <class T>
T whole(T a) {
  return std::trunc(a);
}
/// Returns the smaller of two numbers. If one of them is NaN, returns the other number. greater()
/// returns the greater number by the same rule.
template <class T>
T smaller(T a, T b) {
  return std::fmin(a, b);
}
template <class T>
T greater(T a, T b) {
  return std::fmax(a, b);
}
/// Computes the upper half of the inverse. Subnormals become zeros.
inline void rough_inverse(Thread& t, const Instruction& i) {
  double a = t.get<double>(i.at[1]);
  if (std::fabs(a) < std::numeric_limits<double>::min()) a = std::copysign(0.0, a);
  const auto bits = std::bit_cast<uint64_t>(1 / a) & 0xffffffff00000000ull;
  t.set<double>(i.at[0], std::bit_cast<double>(bits));
}

// Instructions that compare two values.
template <class T, bool (*kOf)(T, T)>
void compared(Thread& t, const Instruction& i) {
  t.set<bool>(i.at[0], kOf(t.get<T>(i.at[1]), t.get<T>(i.at[2])));
}
template <class T>
bool is_nan(T a) {
  return a != a;
}
template <class T>
bool equal(T a, T b) {
  return a == b;
}
/// Returns whether two floats differ. As for all comparisons without "u", the result is false if an
/// operand is NaN.
template <class T>
bool unequal(T a, T b) {
  return a < b || a > b;
}
template <class T>
bool less(T a, T b) {
  return a < b;
}
template <class T>
bool at_most(T a, T b) {
  return a <= b;
}
template <class T>
bool more(T a, T b) {
  return a > b;
}
template <class T>
bool at_least(T a, T b) {
  return a >= b;
}
template <class T, bool (*kOf)(T, T)>
bool or_unordered(T a, T b) {
  return is_nan(a) || is_nan(b) || kOf(a, b);
}
template <class T>
bool numbers(T a, T b) {
  return !is_nan(a) && !is_nan(b);
}
template <class T>
bool some_nan(T a, T b) {
  return is_nan(a) || is_nan(b);
}

/// Copies a value without changing its bits.
inline void moved(Thread& t, const Instruction& i) {
  t.slots[i.at[0].slot] = t.slots[i.at[1].slot];
}
inline void selected(Thread& t, const Instruction& i) {
  t.slots[i.at[0].slot] = t.slots[i.at[t.get<bool>(i.at[3]) ? 1 : 2].slot];
}
template <class Part, class Whole>
void packed_of(Thread& t, const Instruction& i) {
  Whole made = 0;
  for (int k = 1; k < i.count; ++k)
    made = static_cast<Whole>(made | static_cast<Whole>(t.get<Part>(i.at[k]))
                                         << ((k - 1) * kBits<Part>));
  t.set<Whole>(i.at[0], made);
}
template <class Part, class Whole>
void unpacked(Thread& t, const Instruction& i) {
  const Whole value = t.get<Whole>(i.at[i.count - 1]);
  for (int k = 0; k + 1 < i.count; ++k)
    t.set<Part>(i.at[k], static_cast<Part>(value >> (k * kBits<Part>)));
}
inline void now(Thread& t, const Instruction& i) {
  t.set<uint64_t>(i.at[0], i.at[1].slot == kGlobalTimer
                               ? static_cast<uint64_t>(muonrt::cuda::global_timer())
                               : t.get<uint64_t>(i.at[1]));
}

template <class To, class From>
void converted(Thread& t, const Instruction& i) {
  t.set<To>(i.at[0], static_cast<To>(t.get<From>(i.at[1])));
}
inline void f32_of_f16(Thread& t, const Instruction& i) {
  t.set<float>(i.at[0], muonrt::cuda::widened_f16(t.get<uint16_t>(i.at[1])));
}
/// Packs two floats into one word. The first float becomes the upper half.
template <muonrt::DType kElement>
void word_of(Thread& t, const Instruction& i) {
  t.set<uint32_t>(i.at[0],
                  muonrt::cuda::packed<kElement>(t.get<float>(i.at[2]), t.get<float>(i.at[1])));
}

}  // namespace emulator::ptx
