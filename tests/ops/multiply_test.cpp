#include <catch2/catch.hpp>
#include <cmath>
#include <list>

#include "ops/subjects.hpp"
#include "support/sanitized.hpp"
#include "support/tolerances.hpp"

using namespace muonrt;
using namespace ops_test;

namespace {

struct Case {
  int64_t m, n, k, count = 1;
  bool transpose_b = false, symmetric = false, with_d = false;
  float alpha = 1.0f, beta = 0.0f, gamma = 0.0f;
};

double at(const Bytes& bytes, const MatrixBatch& m, int64_t matrix, int64_t row, int64_t col) {
  return static_cast<double>(value_in(bytes, m.dtype, matrix * m.stride + row * m.ld + col));
}

/// The operands of a product on a machine, with the leading dimension that its backend prefers. If
/// the result is symmetric, the product is A A^T and D is symmetric. Memory that the op must not
/// read is filled with NaN: the padding, A and B if alpha is 0, and D if beta is 0.
struct Operands {
  Operands(Machine& machine, const Case& c, DType dtype, DType result) : machine_(machine), c_(c) {
    p.a = make(c.m, c.k, dtype, 1, in_a, c.alpha != 0.0f);
    if (c.symmetric) {
      p.b = p.a;
      in_b = in_a;
    } else {
      p.b = make(c.transpose_b ? c.n : c.k, c.transpose_b ? c.k : c.n, dtype, 2, in_b,
                 c.alpha != 0.0f);
    }
    p.c = make(c.m, c.n, result, 3, in_c, true);
    // D has a larger leading dimension and a larger stride than C.
    if (c.with_d) p.d = make(c.m, c.n, dtype, 4, in_d, c.beta != 0.0f, 128);
    p.transpose_b = c.transpose_b;
    p.symmetric = c.symmetric;
    p.alpha = c.alpha;
    p.beta = c.beta;
    p.gamma = c.gamma;
  }

  MatrixBatch make(int64_t rows, int64_t cols, DType type, uint64_t seed, Bytes& content, bool read,
                   int64_t apart = 0) {
    MatrixBatch made{
        nullptr,  type, rows, cols, machine_.ops().leading_dimension(cols, type) + apart,
        c_.count, 0};
    made.stride = (rows * made.ld + 127 + apart) / 128 * 128;
    content.assign(static_cast<size_t>(c_.count * made.stride * size_of(type)), 0xff);
    for (int64_t i = 0; read && i < c_.count; ++i) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = 0; j < cols; ++j) {
          const bool mirrored = seed == 4 && c_.symmetric && j < r;
          const int64_t from = mirrored ? j * made.ld + r : r * made.ld + j;
          set_value(content, type, i * made.stride + r * made.ld + j,
                    value_at(seed, i * made.stride + from));
        }
      }
    }
    made.data = machine_.put(content.empty() ? Bytes(1) : content);
    return made;
  }

  Bytes product() {
    machine_.ops().reserve(p.c.rows, p.c.cols, std::max<int64_t>(p.a.cols, 1), p.a.dtype);
    machine_.ops().multiply(machine_.on(), p);
    machine_.finish();
    return machine_.get(static_cast<const unsigned char*>(p.c.data), std::ssize(in_c));
  }

  /// Returns the number of wrong elements. An element is wrong if its error exceeds the rounding
  /// error of the sum plus one final rounding. If alpha is 0, only the final rounding is allowed.
  /// An element of the padding is wrong if it has changed. An element of a symmetric result is also
  /// wrong if it differs from its mirror image.
  int64_t wrong(const Bytes& got) const {
    int64_t count = 0;
    for (int64_t i = 0; i < c_.count; ++i) {
      for (int64_t r = 0; r < c_.m; ++r) {
        for (int64_t j = 0; j < c_.n; ++j) {
          count += is_wrong(i, r, j, at(got, p.c, i, r, j));
          count += c_.symmetric && at(got, p.c, i, r, j) != at(got, p.c, i, j, r);
        }
        const int64_t size = size_of(p.c.dtype), end = i * p.c.stride + (r + 1) * p.c.ld;
        for (int64_t byte = (end - p.c.ld + c_.n) * size; byte < end * size; ++byte)
          count += got[static_cast<size_t>(byte)] != 0xff;
      }
    }
    return count;
  }

  bool is_wrong(int64_t i, int64_t r, int64_t j, double got) const {
    double sum = 0, magnitude = 0;
    for (int64_t k = 0; c_.alpha != 0.0f && k < c_.k; ++k) {
      const double term = at(in_a, p.a, i, r, k) *
                          (c_.transpose_b ? at(in_b, p.b, i, j, k) : at(in_b, p.b, i, k, j));
      sum += term;
      magnitude += std::abs(term);
    }
    double expected = static_cast<double>(c_.alpha) * sum;
    magnitude *= std::abs(static_cast<double>(c_.alpha));
    const double d =
        c_.with_d && c_.beta != 0.0f ? static_cast<double>(c_.beta) * at(in_d, p.d, i, r, j) : 0.0;
    const double gamma = r == j ? static_cast<double>(c_.gamma) : 0.0;
    expected += d + gamma;
    magnitude += std::abs(d) + std::abs(gamma);
    if (c_.alpha == 0.0f) {
      Bytes rounded(4);
      set_value(rounded, p.c.dtype, 0, static_cast<float>(expected));
      return got != static_cast<double>(value_in(rounded, p.c.dtype, 0));
    }
    return !(std::abs(got - expected) <= tolerance::product(c_.k, magnitude, expected, p.c.dtype) +
                                             (p.c.dtype == DType::kF16 ? 0x1p-25 : 0));
  }

  Product p;
  Bytes in_a, in_b, in_c, in_d;

 private:
  Machine& machine_;
  const Case& c_;
};

bool is_host(const Subject& subject) { return subject.name.starts_with("host"); }

std::vector<Case> cases() {
  return {{1, 1, 1},
          {5, 7, 3, 2},
          {7, 5, 3, 4, true, false, true, 0.5f, -2.0f, 3.0f},
          {64, 130, 33},
          {33, 65, 17, 7, false, false, true, 0.5f, -2.0f, 3.0f},
          {1, 40, 9, 2, true, false, true, 0.5f, -2.0f, 3.0f},
          {17, 65, 100, 3, true},
          {65, 65, 300, 1, true, true},
          {33, 70, 33, 1, false, false, true, 1.5f, -0.75f},
          {40, 40, 70, 2, true, true},
          {33, 70, 33, 3, false, false, true, 1.5f, -0.75f},
          {33, 70, 20, 2, false, false, true, 1.5f},
          {33, 70, 20, 2, false, false, false, 1.5f, 2.0f},
          {66, 66, 66, 1, true, true, true, 0.3f, 2.5f},
          {66, 66, 66, 1, true, true, true, 0.3f, 2.5f, 0.7f},
          {70, 70, 70, 2, true, true, true, 0.0f, 1.0f, 3.5f},
          {37, 37, 37, 3, true, true, true, 0.0f, 1.0f, 4.0625f},
          {5, 5, 7, 2, false, false, true, 0.0f, -2.0f, 3.0f},
          {9, 9, 0, 1, true, true, true, 1.0f, -2.0f, 1.0f},
          {1, 300, 1, 2, false, false, true, 1.0f, 1.0f},
          {63, 63, 77, 2, true, true},
          {64, 64, 77, 2, true, true},
          {130, 130, 77, 2, true, true},
          {200, 200, 77, 2, true, true}};
}

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

}  // namespace

TEST_CASE("multiply: equals float64 up to the roundings of f32 sums, and is exactly symmetric",
          "[ops][tsan]") {
  for (const Subject& subject : product_subjects()) {
    const std::vector<Case> all = cases();
    for (size_t i = 0; i < all.size(); i += kSanitized ? 3 : 1) {
      const Case& c = all[i];
      for (const DType dtype : kDTypes) {
        for (const DType result : kDTypes) {
          const bool half = dtype == DType::kF16 || result == DType::kF16;
          if (dtype != result && (is_host(subject) || half)) continue;
          CAPTURE(subject.name, c.m, c.n, c.k, name_of(dtype), name_of(result), c.alpha, c.gamma);
          Machine machine(subject.make());
          Operands o(machine, c, dtype, result);
          CHECK(o.wrong(o.product()) == 0);
        }
      }
    }
  }
}

TEST_CASE("multiply: the bits of a matrix do not depend on the batch or the number of threads",
          "[ops][tsan]") {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c :
         {Case{48, 80, 48, 5}, Case{64, 64, 200, 7, true, true}, Case{48, 48, 80, 9, true, true}}) {
      Bytes one_thread;
      for (const Subject& subject : product_subjects()) {
        CAPTURE(subject.name, name_of(dtype), c.m, c.n, c.k);
        Machine machine(subject.make());
        Operands o(machine, c, dtype, dtype);
        const Bytes batched = o.product();
        CHECK(difference(o.product(), batched) == -1);
        if (subject.name == "host, 1 thread") one_thread = batched;
        if (subject.name == "host, 3 threads") CHECK(difference(batched, one_thread) == -1);
        int64_t different = 0;
        for (int64_t i = 0; i < c.count; ++i) {
          Product alone = o.p;
          for (MatrixBatch* m : {&alone.a, &alone.b, &alone.c}) {
            m->data = static_cast<char*>(m->data) + i * m->stride * size_of(dtype);
            m->count = 1;
          }
          machine.ops().fill(machine.on(), alone.c.data, 0xff,
                             ((c.m - 1) * alone.c.ld + c.n) * size_of(dtype));
          machine.ops().multiply(machine.on(), alone);
          const Bytes got = machine.get(static_cast<const unsigned char*>(alone.c.data),
                                        alone.c.stride * size_of(dtype));
          for (int64_t r = 0; r < c.m; ++r)
            for (int64_t j = 0; j < c.n; ++j)
              different += at(got, alone.c, 0, r, j) != at(batched, o.p.c, i, r, j);
        }
        CHECK(different == 0);
      }
    }
  }
}

struct ChainSize {
  int64_t m, n, count;
};

/// Returns the bits of R = X X^T, Z = R R + 0.5 R and Z X + 3 X for batches of X, or nothing if the
/// backend does not compute the batches matrix by matrix.
std::vector<Bytes> chain(Machine& machine, DType dtype, const std::vector<ChainSize>& sizes,
                         bool by_matrix) {
  std::list<Operands> operands;
  std::vector<Product> grams, squares, products;
  for (const auto [m, n, count] : sizes) {
    const Case first{m, m, n, count, true, true}, last{m, n, m, count, false, false, true};
    const Product& gram = grams.emplace_back(operands.emplace_back(machine, first, dtype, dtype).p);
    Product& square = squares.emplace_back(operands.emplace_back(machine, first, dtype, dtype).p);
    square.a = square.b = square.d = gram.c;
    square.beta = 0.5f;
    Product& out = products.emplace_back(operands.emplace_back(machine, last, dtype, dtype).p);
    out.a = square.c;
    out.b = out.d = gram.a;
    out.beta = 3.0f;
  }
  products.insert(products.begin(), squares.begin(), squares.end());
  products.insert(products.begin(), grams.begin(), grams.end());
  for (const Product& p : products) machine.ops().reserve(p.c.rows, p.c.cols, p.a.cols, dtype);
  if (!by_matrix) {
    for (const Product& p : products) machine.ops().multiply(machine.on(), p);
  } else if (!machine.ops().multiply_by_matrix(machine.on(), products)) {
    return {};
  }
  machine.finish();
  std::vector<Bytes> results;
  for (const Product& p : products)
    results.push_back(machine.get(static_cast<const unsigned char*>(p.c.data),
                                  p.c.count * p.c.stride * size_of(dtype)));
  return results;
}

TEST_CASE("multiply: batches that are computed matrix by matrix have the same bits",
          "[ops][tsan]") {
  constexpr ChainSize kSmall{48, 80, 7}, kLarge{330, 820, 3}, kLargeAlone{330, 820, 1};
  for (const Subject& subject : product_subjects()) {
    for (const DType dtype : kDTypes) {
      CAPTURE(subject.name, name_of(dtype));
      Machine machine(subject.make());
      CHECK(chain(machine, dtype, {{48, 80, 1}}, true).empty());
      for (const std::vector<ChainSize>& sizes :
           {std::vector{kSmall}, {kLarge}, {kLarge, kSmall, kLargeAlone}}) {
        const std::vector<Bytes> found = chain(machine, dtype, sizes, true);
        CHECK(found.empty() == !is_host(subject));
        if (!found.empty()) CHECK(found == chain(machine, dtype, sizes, false));
      }
    }
  }
}

TEST_CASE("multiply: after reserve a product allocates nothing", "[ops]") {
  for (const Subject& subject : product_subjects()) {
    if (!is_host(subject)) continue;  // optimizer_test counts allocations on CUDA
    INFO(subject.name);
    Machine machine(subject.make());
    std::vector<Case> sizes;
    for (const int64_t n : {10, 200, 40}) {
      for (const bool symmetric : {false, true}) {
        sizes.push_back({n, n, n, 3, symmetric, symmetric, true, 1.0f, 1.0f});
        sizes.push_back({n, n, n, 3, true, false, true, 1.0f, 1.0f});
      }
    }
    for (const Case& c : sizes)
      for (const DType dtype : {DType::kF32, DType::kBF16})
        machine.ops().reserve(c.m, c.n, c.k, dtype);
    for (const Case& c : sizes) {
      const Operands o(machine, c, DType::kF32, DType::kF32);
      const int64_t calls = machine.device->allocations();
      CHECK(calls > 0);
      machine.ops().reserve(c.m, c.n, c.k, DType::kF32);  // must not allocate again
      machine.ops().multiply(machine.on(), o.p);
      machine.finish();
      CHECK(machine.device->allocations() == calls);
    }
  }
}

TEST_CASE("multiply: dtypes, shapes and batches that do not fit are rejected", "[ops]") {
  for (const Subject& subject : product_subjects()) {
    INFO(subject.name);
    Machine machine(subject.make());
    const Case c{32, 32, 32, 2};
    const Operands o(machine, c, DType::kBF16, DType::kBF16);
    const auto rejected = [&](const auto& change) {
      Product p = o.p;
      change(p);
      CHECK_THROWS_AS(
          [&] {
            machine.ops().multiply(machine.on(), p);
            machine.finish();
          }(),
          Error);
      machine.device->clear_error();
    };
    rejected([](Product& p) { p.a.dtype = static_cast<DType>(99); });
    rejected([](Product& p) { p.a.cols = 3; });
    rejected([](Product& p) { p.c.count = 3; });
    rejected([](Product& p) { p.c.data = p.a.data; });
    rejected([](Product& p) { p.c.data = p.b.data; });
    Product none = o.p;
    none.a.count = none.b.count = none.c.count = 0;
    machine.ops().multiply(machine.on(), none);
    machine.finish();
  }
}

TEST_CASE("add_identity: the diagonals are rounded once, everything else is unchanged",
          "[ops][tsan]") {
  for (const DType dtype : kDTypes) {
    for (const auto& [n, count] : {std::pair<int64_t, int64_t>{1, 1}, {33, 3}, {300, 2}}) {
      CAPTURE(name_of(dtype), n, count);
      MatrixBatch x{nullptr, dtype, n, n, n + 7, count, n * (n + 7) + 64};
      const Bytes content = values(7, dtype, count * x.stride);
      Bytes expected = content;
      for (int64_t i = 0; i < count; ++i)
        for (int64_t r = 0; r < n; ++r) {
          const int64_t place = i * x.stride + r * (x.ld + 1);
          set_value(expected, dtype, place,
                    static_cast<float>(static_cast<double>(value_in(content, dtype, place)) +
                                       static_cast<double>(3.4445f)));
        }
      check_everywhere({expected}, [&](Machine& machine) {
        MatrixBatch batch = x;
        batch.data = machine.put(content);
        machine.ops().add_identity(machine.on(), batch, 3.4445f);
        machine.finish();
        return Results{
            machine.get(static_cast<const unsigned char*>(batch.data), std::ssize(content))};
      });
    }
  }
}

TEST_CASE("multiply: a row of NaN gives a row and, mirrored, a column of NaN", "[ops]") {
  for (const Subject& subject : product_subjects()) {
    const Case c{130, 130, 20, 1, true, true};
    Machine machine(subject.make());
    Operands o(machine, c, DType::kBF16, DType::kBF16);
    set_value(o.in_a, DType::kBF16, 3 * o.p.a.ld + 4, std::nanf(""));
    o.p.a.data = o.p.b.data = machine.put(o.in_a);
    const Bytes got = o.product();
    int64_t unlike = 0;
    for (int64_t r = 0; r < c.m; ++r)
      for (int64_t j = 0; j < c.n; ++j)
        unlike += std::isnan(at(got, o.p.c, 0, r, j)) != (r == 3 || j == 3);
    CAPTURE(subject.name);
    CHECK(unlike == 0);
  }
}
