#include "ptx/arithmetic.hpp"

namespace emulator::ptx {

namespace {

template <class T>
void add_whole(Table& table) {
  const std::string type = Name<T>::of();
  table["add" + type] = two<T, sum<T>>;
  table["sub" + type] = two<T, difference<T>>;
  table["mul.lo" + type] = two<T, product<T>>;
  table["mad.lo" + type] = three<T, product_and_sum<T>>;
  table["div" + type] = two<T, quotient<T>>;
  table["rem" + type] = two<T, rest<T>>;
  table["min" + type] = two<T, least<T>>;
  table["max" + type] = two<T, largest<T>>;
  table["shr" + type] = shifted_right<T>;
  if constexpr (std::is_signed_v<T>) {
    table["neg" + type] = one<T, negated<T>>;
    table["abs" + type] = one<T, magnitude<T>>;
  }
}

template <class T>
void add_bits(Table& table) {
  const std::string type = ".b" + std::to_string(kBits<T>);
  table["and" + type] = two<T, both<T>>;
  table["or" + type] = two<T, either<T>>;
  table["xor" + type] = two<T, differing<T>>;
  table["not" + type] = one<T, inverted<T>>;
  table["shl" + type] = shifted_left<T>;
}

template <class T>
void add_comparisons(Table& table, const std::string& type) {
  table["setp.eq" + type] = compared<T, equal<T>>;
  table["setp.ne" + type] = compared<T, unequal<T>>;
  table["setp.lt" + type] = compared<T, less<T>>;
  table["setp.le" + type] = compared<T, at_most<T>>;
  table["setp.gt" + type] = compared<T, more<T>>;
  table["setp.ge" + type] = compared<T, at_least<T>>;
}

template <class T>
void add_floating(Table& table) {
  const std::string type = Name<T>::of();
  add_comparisons<T>(table, type);
  table["setp.equ" + type] = compared<T, or_unordered<T, equal<T>>>;
  table["setp.neu" + type] = compared<T, or_unordered<T, unequal<T>>>;
  table["setp.ltu" + type] = compared<T, or_unordered<T, less<T>>>;
  table["setp.leu" + type] = compared<T, or_unordered<T, at_most<T>>>;
  table["setp.gtu" + type] = compared<T, or_unordered<T, more<T>>>;
  table["setp.geu" + type] = compared<T, or_unordered<T, at_least<T>>>;
  table["setp.num" + type] = compared<T, numbers<T>>;
  table["setp.nan" + type] = compared<T, some_nan<T>>;
  table["add.rn" + type] = two<T, plus<T>>;
  table["sub.rn" + type] = two<T, minus<T>>;
  table["mul.rn" + type] = two<T, times<T>>;
  table["div.rn" + type] = two<T, over<T>>;
  table["fma.rn" + type] = three<T, fused<T>>;
  table["sqrt.rn" + type] = one<T, root<T>>;
  table["rcp.rn" + type] = one<T, inverse<T>>;
  table["neg" + type] = one<T, opposite<T>>;
  table["abs" + type] = one<T, size_of<T>>;
  table["min" + type] = two<T, smaller<T>>;
  table["max" + type] = two<T, greater<T>>;
  table["cvt.rzi" + type + type] = one<T, whole<T>>;
}

/// Adds conversions between integers, and to and from floats.
template <class From, class... To>
void add_conversions(Table& table) {
  ((table["cvt" + Name<To>::of() + Name<From>::of()] = converted<To, From>), ...);
  table["cvt.rn.f32" + Name<From>::of()] = converted<float, From>;
  table["cvt.rn.f64" + Name<From>::of()] = converted<double, From>;
}
template <class... T>
void add_all_conversions(Table& table) {
  (add_conversions<T, T...>(table), ...);
}

void add_moves(Table& table) {
  for (const char* type : {".b16", ".u16", ".s16", ".b32", ".u32", ".s32", ".f32", ".b64", ".u64",
                           ".s64", ".f64", ".pred"})
    table[std::string("mov") + type] = moved;
  for (const char* type :
       {".b16", ".u16", ".s16", ".b32", ".u32", ".s32", ".f32", ".b64", ".u64", ".s64", ".f64"})
    table[std::string("selp") + type] = selected;
  table["mov.u64"] = now;
  table["mov.b32.pack"] = packed_of<uint16_t, uint32_t>;
  table["mov.b32.unpack"] = unpacked<uint16_t, uint32_t>;
  table["mov.b64.pack"] = packed_of<uint32_t, uint64_t>;
  table["mov.b64.unpack"] = unpacked<uint32_t, uint64_t>;
}

}  // namespace

void add_arithmetic(Table& table) {
  add_whole<int16_t>(table), add_whole<uint16_t>(table);
  add_whole<int32_t>(table), add_whole<uint32_t>(table);
  add_whole<int64_t>(table), add_whole<uint64_t>(table);
  add_bits<uint16_t>(table), add_bits<uint32_t>(table), add_bits<uint64_t>(table);
  add_comparisons<int16_t>(table, ".s16"), add_comparisons<uint16_t>(table, ".u16");
  add_comparisons<int32_t>(table, ".s32"), add_comparisons<uint32_t>(table, ".u32");
  add_comparisons<int64_t>(table, ".s64"), add_comparisons<uint64_t>(table, ".u64");
  add_comparisons<uint16_t>(table, ".b16"), add_comparisons<uint32_t>(table, ".b32");
  add_comparisons<uint64_t>(table, ".b64");
  add_floating<float>(table), add_floating<double>(table);
  add_all_conversions<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t>(
      table);
  add_moves(table);
  table["and.pred"] = two<bool, both<bool>>;
  table["or.pred"] = two<bool, either<bool>>;
  table["xor.pred"] = two<bool, differing<bool>>;
  table["not.pred"] = [](Thread& t, const Instruction& i) {
    t.set<bool>(i.at[0], !t.get<bool>(i.at[1]));
  };
  table["max.u16x2"] = two<uint32_t, halves<uint16_t, largest<uint16_t>>>;
  table["min.s16x2"] = two<uint32_t, halves<int16_t, least<int16_t>>>;
  table["mul.wide.s16"] = product_wide<int16_t, int32_t>;
  table["mul.wide.u16"] = product_wide<uint16_t, uint32_t>;
  table["mul.wide.s32"] = product_wide<int32_t, int64_t>;
  table["mul.wide.u32"] = product_wide<uint32_t, uint64_t>;
  table["clz.b32"] = leading_zeros;
  table["prmt.b32"] = permuted;
  table["bfi.b32"] = inserted<uint32_t>, table["bfi.b64"] = inserted<uint64_t>;
  table["rcp.approx.ftz.f64"] = rough_inverse;
  table["cvt.f64.f32"] = converted<double, float>;
  table["cvt.rn.f32.f64"] = converted<float, double>;
  table["cvt.f32.f16"] = f32_of_f16;
  table["cvt.rn.bf16x2.f32"] = word_of<muonrt::DType::kBF16>;
  table["cvt.rn.f16x2.f32"] = word_of<muonrt::DType::kF16>;
}

}  // namespace emulator::ptx
