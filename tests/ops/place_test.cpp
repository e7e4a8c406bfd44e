#include <bit>
#include <catch2/catch.hpp>
#include <cmath>

#include "ops/subjects.hpp"
#include "support/sanitized.hpp"

using namespace muonrt;
using namespace ops_test;

namespace {

/// A whole matrix that is cut into four parts at (cut_row, cut_col).
struct Shape {
  int64_t rows, cols, pad;  // pad: number of elements between two stored rows
  int64_t cut_row, cut_col;
  int64_t gap;  // number of elements before each part in the message
};

struct Placing {
  std::vector<OwnedMatrix> owned;
  std::vector<MatrixBlock> blocks;
  std::vector<int64_t> pads;
  int64_t message_elements = 0;
};

Placing placing(const std::vector<Shape>& shapes) {
  Placing out;
  for (const Shape& s : shapes) {
    const auto index = static_cast<int32_t>(out.owned.size());
    out.owned.push_back({index, s.rows, s.cols});
    out.pads.push_back(s.pad);
    for (const auto& [row, end_row] : {std::pair(int64_t{0}, s.cut_row), {s.cut_row, s.rows}}) {
      for (const auto& [col, end_col] : {std::pair(int64_t{0}, s.cut_col), {s.cut_col, s.cols}}) {
        if (row == end_row || col == end_col) continue;
        out.message_elements += s.gap;
        out.blocks.push_back({index, end_row - row, end_col - col, row, col, out.message_elements});
        out.message_elements += (end_row - row) * (end_col - col);
      }
    }
  }
  return out;
}

/// Returns wide, tall and square shapes, most of them with unaligned addresses. Here and in
/// tiled_shapes(), each initializer lists rows, cols, pad, cut_row, cut_col and gap.
std::vector<Shape> odd_shapes() {
  return {{70, 200, 0, 23, 200, 0},  {200, 70, 8, 66, 35, 1},   {64, 64, 0, 21, 64, 2},
          {131, 257, 7, 43, 128, 3}, {257, 131, 1, 85, 131, 0}, {1, 37, 0, 0, 18, 1},
          {41, 1, 3, 13, 1, 2},      {1, 1, 0, 0, 0, 3},        {9000, 3, 0, 3000, 3, 0},
          {2, 20000, 0, 0, 10000, 1}};
}

/// Returns tall shapes that consist of whole tiles, shapes whose sizes are multiples of 8, and
/// shapes in which one address is not aligned.
std::vector<Shape> tiled_shapes() {
  return {{192, 128, 0, 64, 64, 8}, {136, 72, 8, 128, 64, 8}, {144, 24, 0, 16, 8, 16},
          {104, 96, 64, 40, 56, 0}, {130, 64, 6, 64, 64, 0},  {128, 64, 4, 64, 64, 4},
          {129, 70, 7, 64, 64, 8},  {128, 72, 0, 60, 64, 0},  {128, 64, 0, 64, 32, 4},
          {136, 64, 0, 64, 32, 4},  {128, 64, 1, 64, 64, 7},  {128, 68, 0, 64, 64, 4},
          {64, 192, 0, 32, 64, 8},  {72, 136, 8, 8, 128, 4},  {24, 9000, 3, 8, 4096, 1}};
}

/// Offsets of the message in elements: aligned, odd, and a multiple of 8 but not of 16 bytes.
const std::vector<int64_t> kOffsets =
    kSanitized ? std::vector<int64_t>{3} : std::vector<int64_t>{0, 3, 4};

/// The contents of the matrices and of the message.
struct Content {
  std::vector<Bytes> matrices;
  Bytes message;
};

int64_t stored_elements(const Placing& p, size_t i) {
  return p.owned[i].short_side() * (p.owned[i].long_side() + p.pads[i]);
}

Content contents(const Placing& p, DType stored, DType transport) {
  Content out;
  for (size_t i = 0; i < p.owned.size(); ++i)
    out.matrices.push_back(values(i, stored, stored_elements(p, i)));
  out.message = values(99, transport, p.message_elements);
  return out;
}

/// Selects pack or unpack, and the dtypes.
struct Move {
  DType stored, transport;
  bool unpack;         // true: unpack; false: pack
  int64_t offset = 0;  // offset of the message, in elements
};

/// Returns the Findings, the message with its gaps, and every matrix with its padding.
Results placed(Machine& machine, const Placing& p, const Content& content, const Move& move) {
  std::vector<MatrixBatch> matrices;
  for (size_t i = 0; i < p.owned.size(); ++i) {
    const OwnedMatrix& o = p.owned[i];
    matrices.push_back({machine.put(content.matrices[i], move.offset * size_of(move.stored)),
                        move.stored, o.short_side(), o.long_side(), o.long_side() + p.pads[i], 1,
                        0});
  }
  auto* message = machine.put(content.message, move.offset * size_of(move.transport));
  auto* findings = machine.put_one(Findings{});
  if (move.unpack) {
    machine.ops().unpack(machine.on(), p.blocks, p.owned, matrices.data(),
                         {.data = message, .dtype = move.transport});
  } else {
    machine.ops().pack(machine.on(), p.blocks, p.owned, matrices.data(),
                       {.data = message, .dtype = move.transport}, findings);
  }
  machine.finish();
  Results out = {bytes_of(machine, findings), machine.get(message, std::ssize(content.message))};
  for (size_t i = 0; i < matrices.size(); ++i)
    out.push_back(machine.get(static_cast<const unsigned char*>(matrices[i].data),
                              std::ssize(content.matrices[i])));
  return out;
}

/// Returns the number of elements that differ between two arrays. All NaN count as equal.
int64_t different_values(const Bytes& a, const Bytes& b, DType dtype) {
  int64_t count = 0;
  for (int64_t i = 0; i < std::ssize(a) / size_of(dtype); ++i) {
    const float x = value_in(a, dtype, i), y = value_in(b, dtype, i);
    count += std::isnan(x) != std::isnan(y) ||
             (!std::isnan(x) && std::bit_cast<uint32_t>(x) != std::bit_cast<uint32_t>(y));
  }
  return count;
}

/// Checks that all backends write the same bytes, and that the values equal those of the reference
/// implementation. Returns 1 if a non-finite value was reported, otherwise 0.
int64_t noted_everywhere(const Placing& p, const Content& content, const Move& move) {
  CAPTURE(name_of(move.stored), name_of(move.transport), move.unpack, move.offset);
  const Run run = [&](Machine& machine) { return placed(machine, p, content, move); };
  const Results expected = of_host(run), values = of_reference(run);
  CHECK(difference(expected[0], values[0]) == -1);
  CHECK(different_values(expected[1], values[1], move.transport) == 0);
  for (size_t i = 2; i < values.size(); ++i)
    CHECK(different_values(expected[i], values[i], move.stored) == 0);
  check_everywhere(expected, run);
  const auto found = value_of<Findings>(expected[0]);
  CHECK(found.first_param == -1);  // the op receives matrices, not parameters
  return found.nonfinite;
}

constexpr DType kAll[] = {DType::kF32, DType::kBF16, DType::kF16};

/// Returns every pair of dtypes that a matrix and its message can have.
std::vector<Move> packs() {
  std::vector<Move> out;
  for (const DType stored : kAll)
    for (const DType transport : kAll) out.push_back({stored, transport, false});
  return out;
}

void set_bits(Bytes& bytes, DType dtype, int64_t i, uint32_t bits) {
  const auto size = static_cast<size_t>(size_of(dtype));
  std::memcpy(bytes.data() + static_cast<size_t>(i) * size, &bits, size);
}

/// Returns the bits of values in `from` that become infinite or NaN in `to`, including the finite
/// values closest to the limit.
std::vector<uint32_t> not_finite_in(DType from, DType to) {
  if (from == DType::kBF16 && to == DType::kF16) return {0x4780, 0xff80, 0x7f81, 0xffff};
  if (from == DType::kF32 && to == DType::kF16)
    return {0x477ff000, 0xff800000, 0x7f800001, 0xffffffff};
  if (from == DType::kBF16) return {0x7f80, 0xff80, 0x7f81, 0xffff};
  if (from == DType::kF16) return {0x7c00, 0xfc00, 0x7c01, 0xffff};
  return {to == DType::kBF16 ? 0x7f7f8000u : 0x7f800000u, 0xff800000, 0x7f800001, 0xffffffff};
}
uint32_t largest_finite_in(DType from, DType to) {
  if (from != DType::kF16 && to == DType::kF16) return from == DType::kF32 ? 0xc77fefff : 0xc77f;
  if (from == DType::kBF16) return 0xff7f;
  if (from == DType::kF16) return 0xfbff;
  return to == DType::kBF16 ? 0xff7f7fff : 0xff7fffff;
}

}  // namespace

TEST_CASE("unpack: every element is stored at its position, and padding is unchanged",
          "[ops][tsan]") {
  for (const auto& shapes : {odd_shapes(), tiled_shapes()}) {
    const Placing p = placing(shapes);
    for (const DType dtype : kAll)
      for (const int64_t offset : kOffsets)
        noted_everywhere(p, contents(p, dtype, dtype), {dtype, dtype, true, offset});
  }
}

TEST_CASE("pack matrices: every element is rounded once, and gaps are unchanged", "[ops][tsan]") {
  for (const auto& shapes : {odd_shapes(), tiled_shapes()}) {
    const Placing p = placing(shapes);
    for (Move move : packs()) {
      for (const int64_t offset : kOffsets) {
        move.offset = offset;
        CHECK(noted_everywhere(p, contents(p, move.stored, move.transport), move) == 0);
      }
    }
  }
}

TEST_CASE("pack matrices: a value that is not finite is noted at every position of a tile",
          "[ops]") {
  constexpr int64_t kSide = 64, kLd = 2 * kSide;
  const Placing tall = placing({{kLd, kSide, 0, kSide, kSide, 0}});
  const Placing wide = placing({{kSide, kLd, 0, kSide, kLd, 0}});
  for (const Move& move : packs()) {
    const std::vector<uint32_t> bits = not_finite_in(move.stored, move.transport);
    const Content small = contents(tall, move.stored, move.transport);
    Content large = small;
    for (int64_t i = 0; i < kLd * kSide; ++i)
      set_bits(large.matrices[0], move.stored, i, largest_finite_in(move.stored, move.transport));
    const auto poisoned = [&](int64_t row, int64_t col) {
      Content with = row / 2 % 2 ? large : small;
      set_bits(with.matrices[0], move.stored, row * kLd + col,
               bits[static_cast<size_t>(row / 4 % 4)]);
      return with;
    };
    CHECK(noted_everywhere(tall, large, move) == 0);
    CHECK(noted_everywhere(wide, large, move) == 0);
    // The non-finite value is tested once in each row and each column, including the first and the
    // last ones.
    for (int64_t i = 0; i < kSide; i += kSanitized ? 9 : 1)
      CHECK(noted_everywhere(tall, poisoned(i, kSide + (i * 5) % kSide), move) == 1);
    for (int64_t i = 0; i < kSide; i += kSanitized ? 21 : 3)
      CHECK(noted_everywhere(wide, poisoned(i, i), move) == 1);
    CHECK(noted_everywhere(tall, poisoned(kSide - 1, kLd - 1), move) == 1);
  }
}

TEST_CASE("pack and unpack: all values of 16 bits and NaN of all kinds have the same bits",
          "[ops]") {
  for (const auto& [rows, cols] : {std::pair(512, 128), {128, 512}, {65536 / 7 + 1, 7}}) {
    const Placing p = placing({{rows, cols, 0, 0, cols, 0}});
    std::vector<Move> moves = packs();
    for (const DType dtype : kAll) moves.push_back({dtype, dtype, true});
    for (const Move& move : moves) {
      Content content = contents(p, move.stored, move.transport);
      Bytes& read = move.unpack ? content.message : content.matrices[0];
      for (int64_t i = 0; i < p.message_elements; ++i) {
        const auto bits =
            static_cast<uint32_t>(i * 40503 & 0xffff);  // adjacent values are of different kinds
        set_bits(read, move.stored, i,
                 move.stored == DType::kF32 ? bits << 16 | static_cast<uint32_t>(i) >> 8 : bits);
      }
      CHECK(noted_everywhere(p, content, move) == (move.unpack ? 0 : 1));
    }
  }
}

TEST_CASE("pack and unpack: an empty list enqueues no work", "[ops]") {
  for (const bool unpack : {true, false})
    CHECK(noted_everywhere({}, {}, {DType::kBF16, DType::kBF16, unpack}) == 0);
}

TEST_CASE("unpack: a matrix that is stored long side first is rejected", "[ops]") {
  const Placing p = placing({{4, 2, 0, 2, 2, 0}});
  for (const Subject& subject : subjects()) {
    INFO(subject.name);
    Machine machine(subject.make());
    auto* memory = machine.put(Bytes(64));
    const MatrixBatch tall{memory, DType::kF32, 4, 2, 2, 1, 0};
    const auto unpack = [&] {
      machine.ops().unpack(machine.on(), p.blocks, p.owned, &tall,
                           {.data = memory + 32, .dtype = DType::kF32});
      machine.finish();
    };
    CHECK_THROWS_AS(unpack(), Error);
  }
}
