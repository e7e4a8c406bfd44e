// Tests muonrt_orthogonalize() and muonrt_symmetric_product(): compares them with a step and with
// float64 references, and tests batches, strides, overlaps and invalid input.

#include <cmath>
#include <limits>

#include "c_tensor.hpp"
#include "host/host_device.hpp"
#include "unit/algo/newton_schulz_cases.hpp"

using namespace c_tensor;

namespace {

Matrix orthogonalized(Orthogonalizer& with, const Matrix& x, DType dtype) {
  Tensor in = tensor_of(x, dtype), out(dtype, in.shape);
  CHECK(with.orthogonalize(out.view(), in.view()) == MUONRT_OK);
  return out.get();
}

muonrt_group_t group_of(const char* list, muonrt_form_t form, muonrt_dtype_t iteration = 0) {
  muonrt_group_t g = muon_group();
  g.form = form;
  g.iteration_dtype = iteration;
  if (std::string(list) == "keller jordan") g.coefficients = MUONRT_COEFFICIENTS_KELLER_JORDAN;
  if (std::string(list) == "equilibrated") g.row_scaling = MUONRT_ROW_SCALING_EQUILIBRATE;
  if (std::string(list) == "renormalized") g.renormalize = 1;
  if (std::string(list) == "aol") {
    g.coefficients = MUONRT_COEFFICIENTS_AOL;
    g.steps = 4;
    g.row_scaling = MUONRT_ROW_SCALING_AOL;
  }
  return g;
}

/// Returns the update of a step whose direction is x. The weights are zero, and the learning rate
/// and the scale are 1, so the new weights are minus the update.
Matrix update_of_step(muonrt_group_t g, const Matrix& x, DType transport) {
  Tensor weight = tensor_of(Matrix(x.rows, x.cols), DType::kF32), grad = tensor_of(x, DType::kF32);
  g.weight_decay = g.momentum = 0;
  g.nesterov = 0;
  g.scale_rule = MUONRT_SCALE_NONE;
  muonrt_param_t p;
  muonrt_param_init(&p);
  p.name = "w";
  p.ndim = 2;
  p.shape = weight.shape.data();
  p.data = weight.memory.data();
  p.grad = grad.memory.data();
  muonrt_optimizer_options_t o = options();
  muonrt_tuning_options_t tuning;
  muonrt_tuning_options_init(&tuning);
  tuning.transport_dtype = static_cast<muonrt_dtype_t>(transport);
  o.tuning = &tuning;
  muonrt_step_args_t args;
  muonrt_step_args_init(&args);
  args.lr = 1;
  muonrt_comm_t* comm = nullptr;
  muonrt_optimizer_t* optimizer = nullptr;
  CHECK(muonrt_comm_create_self(&comm) == MUONRT_OK);
  CHECK(muonrt_optimizer_create(&optimizer, comm, &o, &g, 1, &p, 1) == MUONRT_OK);
  CHECK(muonrt_optimizer_step(nullptr, optimizer, &args) == MUONRT_OK);
  muonrt_optimizer_destroy(optimizer);
  muonrt_comm_destroy(comm);
  return weight.get();
}

}  // namespace

TEST_CASE("orthogonalize: a matrix has the bits of a step's update", "[unit][abi]") {
  const std::pair<int64_t, int64_t> shapes[] = {{1, 1},  {1, 9},   {9, 1},
                                                {7, 19}, {33, 16}, {24, 24}};
  for (const char* list : {"default", "keller jordan", "aol", "equilibrated", "renormalized"}) {
    for (const auto form : {MUONRT_FORM_STANDARD, MUONRT_FORM_GRAM}) {
      const muonrt_group_t g = group_of(list, form);
      Orthogonalizer with(&g);
      for (const auto& [rows, cols] : shapes) {
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          INFO(list << ", form " << form << ", " << rows << " x " << cols << ", "
                    << name_of(dtype));
          const Matrix x = reference::rounded(reference::gaussian(rows, cols, 5), dtype);
          Matrix expected = orthogonalized(with, x, dtype);
          for (double& v : expected.v) v = 0.0 - v;
          CHECK(same(expected, update_of_step(g, x, dtype)));
        }
      }
    }
  }
}

TEST_CASE("orthogonalize: singular values follow the polynomial in float64 on every spectrum",
          "[unit][abi]") {
  constexpr int64_t kRows = 48;
  const reference::List list = reference::lists::kPolarModded;
  const double limit = tolerance::newton_schulz_f32(reference::gain(list, 1.02));
  const muonrt_group_t g = group_of("polar", MUONRT_FORM_AUTO, MUONRT_DTYPE_F32);
  Orthogonalizer with(&g);
  for (const auto& [name, spectrum] : newton_schulz_cases::eight_spectra(kRows)) {
    const Matrix x = reference::rounded(
        reference::assemble(reference::random_svd(kRows, 80, spectrum, 3)), DType::kF32);
    const Matrix error = reference::add(1, orthogonalized(with, x, DType::kF32), -1,
                                        reference::newton_schulz(list, 1.02, x));
    INFO(name);
    // `limit` is the tolerance for the spectral norm of the error.
    CHECK(reference::svd(error).s[0] <= limit);
  }
}

TEST_CASE("orthogonalize: the default dtype on the host follows the processor", "[unit][abi]") {
  const Matrix x = reference::rounded(reference::gaussian(96, 512, 5), DType::kF32);
  const muonrt_dtype_t native =
      muonrt::host::multiplies_bf16() ? MUONRT_DTYPE_BF16 : MUONRT_DTYPE_F32;
  char info[4096];
  REQUIRE(muonrt_get_build_info(info, sizeof info, nullptr) == MUONRT_OK);
  const char* const stated = native == MUONRT_DTYPE_BF16 ? "bf16" : "f32";
  CHECK(std::string(info).find(muonrt::cat("\"host_iteration\":\"", stated, '"')) !=
        std::string::npos);
  for (const bool portable : {false, true}) {
    muonrt_debug_options_t debug;
    muonrt_debug_options_init(&debug);
    debug.portable_gemm = portable;
    muonrt_optimizer_options_t o = options();
    o.debug = &debug;
    for (const auto& [form, dtype] : {std::pair{MUONRT_FORM_STANDARD, native},
                                      {MUONRT_FORM_GRAM, muonrt_dtype_t{MUONRT_DTYPE_F32}}}) {
      const muonrt_group_t by_default = group_of("keller jordan", form);
      const muonrt_group_t given =
          group_of("keller jordan", form, portable ? MUONRT_DTYPE_F32 : dtype);
      Orthogonalizer one(&by_default, &o), other(&given, &o);
      const Matrix found = orthogonalized(one, x, DType::kF32);
      CHECK(same(found, orthogonalized(other, x, DType::kF32)));
      // torch.optim.Muon, which iterates in bf16, has an error of 1.28e-2 for this shape.
      const Matrix exact = reference::newton_schulz(reference::lists::kKellerJordan, 1.0, x);
      double error = 0, total = 0;
      for (size_t i = 0; i < exact.v.size(); ++i) {
        error += std::pow(found.v[i] - exact.v[i], 2);
        total += exact.v[i] * exact.v[i];
      }
      CHECK(std::sqrt(error) <= 1.28e-2 * std::sqrt(total));
    }
  }
}

TEST_CASE("orthogonalize: bits depend on neither batch, threads, strides, dtype nor place",
          "[unit][abi]") {
  muonrt_optimizer_options_t threaded = options();
  threaded.threads = 3;
  const muonrt_group_t g = group_of("renormalized", MUONRT_FORM_AUTO);
  Orthogonalizer one(&g), three(&g, &threaded);
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{5, 5}, {12, 40}, {40, 12}}) {
    constexpr int64_t kCount = 6;
    for (const DType dtype : kAll) {
      std::vector<Matrix> x, expected;
      for (int64_t k = 0; k < kCount; ++k) {
        x.push_back(reference::rounded(reference::gaussian(rows, cols, 60 + k), dtype));
        if (k == 2) x.back() = Matrix(rows, cols);  // one matrix is zero, and so is its result
        expected.push_back(orthogonalized(one, x.back(), DType::kF32));
      }
      CHECK(same(expected[2], x[2]));
      // The layouts are: contiguous rows, padded matrices, contiguous columns, columns [2, 2 +
      // cols) of wider rows, columns with padding, and interleaved matrices.
      const std::vector<std::vector<int64_t>> layouts = {{},
                                                         {rows * cols + 3, cols, 1},
                                                         {rows * cols, 1, rows},
                                                         {rows * (cols + 7), cols + 7, 1},
                                                         {1000, 1, rows + 5},
                                                         {cols, kCount * cols, 1}};
      for (const auto& in_strides : layouts) {
        for (const size_t after : {1, 2}) {
          const size_t next = static_cast<size_t>(&in_strides - layouts.data()) + after;
          const auto& out_strides = layouts[next % layouts.size()];
          for (Orthogonalizer* with : {&one, &three}) {
            Tensor in(dtype, {kCount, rows, cols}, in_strides);
            Tensor out(DType::kF32, {kCount, rows, cols}, out_strides);
            for (int64_t k = 0; k < kCount; ++k) in.put(x[static_cast<size_t>(k)], k);
            const auto before = in.memory;
            REQUIRE(with->orthogonalize(out.view(), in.view()) == MUONRT_OK);
            CHECK(in.memory == before);
            for (int64_t k = 0; k < kCount; ++k)
              CHECK(same(out.get(k), expected[static_cast<size_t>(k)]));
            // If the output is the input, the result is also rounded only once, and nothing is
            // written between the rows.
            Tensor place = in;
            REQUIRE(with->orthogonalize(place.view(), place.view()) == MUONRT_OK);
            for (int64_t k = 0; k < kCount; ++k) {
              CHECK(
                  same(place.get(k), reference::rounded(expected[static_cast<size_t>(k)], dtype)));
              in.put(place.get(k), k);
            }
            CHECK(in.memory == place.memory);
          }
        }
      }
    }
  }
}

TEST_CASE("orthogonalize: a batch that runs in several parts has the bits of its matrices",
          "[unit][abi]") {
  constexpr int64_t kCount = 40, kRows = 130, kCols = 220;  // one launch can process 2^20 elements
  muonrt_group_t g = group_of("keller jordan", MUONRT_FORM_STANDARD);
  g.steps = 1;
  muonrt_optimizer_options_t threaded = options();
  threaded.threads = 2;
  Orthogonalizer with(&g, &threaded);
  Tensor x(DType::kF32, {kCount, kRows, kCols}), product(DType::kF32, {kCount, kRows, kRows});
  for (int64_t k = 0; k < kCount; ++k)
    x.put(reference::values(static_cast<uint64_t>(k), kRows, kCols), k);
  CHECK(with.product(product.view(), 1.0, x.view()) == MUONRT_OK);
  CHECK(with.orthogonalize(x.view(), x.view()) == MUONRT_OK);
  for (const int64_t k : {0, 35, 36, 37, 39}) {
    const Matrix one = reference::values(static_cast<uint64_t>(k), kRows, kCols);
    CHECK(same(x.get(k), orthogonalized(with, one, DType::kF32)));
    Tensor in = tensor_of(one, DType::kF32), out(DType::kF32, {kRows, kRows});
    CHECK(with.product(out.view(), 1.0, in.view()) == MUONRT_OK);
    CHECK(same(product.get(k), out.get()));
  }
}

TEST_CASE("orthogonalize: empty batches and dimensions, and batches of more dimensions",
          "[unit][abi]") {
  Orthogonalizer with;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {0, 4}, {4, 0}, {0, 0}, {0, 4, 4}, {3, 0, 4}, {2, 3, 4, 0}}) {
    Tensor x(DType::kF32, shape);
    int64_t nonfinite = -1;
    muonrt_dltensor_t view = x.view();
    view.data = nullptr;
    CHECK(with.orthogonalize(view, view, &nonfinite) == MUONRT_OK);
    CHECK(nonfinite == 0);
  }
  Tensor all(DType::kF32, {2, 3, 1, 4, 6}, {200, 30, 7, 6, 1}), flat(DType::kF32, {6, 4, 6});
  for (int64_t k = 0; k < 6; ++k) {
    const Matrix m = reference::gaussian(4, 6, k);
    flat.put(m, k);
    for (int64_t e = 0; e < 24; ++e)
      store(all.memory.data(), DType::kF32, k / 3 * 200 + k % 3 * 30 + e,
            static_cast<float>(m(e / 6, e % 6)));
  }
  CHECK(with.orthogonalize(all.view(), all.view()) == MUONRT_OK);
  CHECK(with.orthogonalize(flat.view(), flat.view()) == MUONRT_OK);
  for (int64_t k = 0; k < 6; ++k)
    CHECK(std::memcmp(all.memory.data() + 4 * (k / 3 * 200 + k % 3 * 30),
                      flat.memory.data() + 4 * 24 * k, 4 * 24) == 0);
}

TEST_CASE("orthogonalize: an element that is not finite is reported, and nothing is written",
          "[unit][abi]") {
  const float infinity = std::numeric_limits<float>::infinity();
  Orthogonalizer with;
  for (const DType dtype : kAll) {
    for (const bool by_columns : {false, true}) {
      for (const float bad : {infinity, -infinity, std::nanf("")}) {
        Tensor x(dtype, {2, 3, 5}, {20, by_columns ? 1 : 5, by_columns ? 3 : 1});
        for (int64_t k = 0; k < 2; ++k) x.put(reference::gaussian(3, 5, 1), k);
        store(x.memory.data(), dtype, x.at(1, 2, 3), bad);
        const auto before = x.memory;
        int64_t nonfinite = 0;
        CHECK(with.orthogonalize(x.view(), x.view(), &nonfinite) == MUONRT_SKIPPED);
        CHECK(nonfinite == 1);
        CHECK(x.memory == before);
        CHECK(std::string(muonrt_get_last_error()).find("[1, 2, 3]") != std::string::npos);
      }
    }
  }
}

TEST_CASE("orthogonalize: invalid tensors are rejected with their values, and nothing is written",
          "[unit][abi]") {
  Orthogonalizer with;
  // The tensors of one call, and the texts that the error message must contain.
  struct Call {
    Tensor x = tensor_of(reference::gaussian(4, 6, 1), DType::kF32);
    Tensor out = x;
    muonrt_dltensor_t c = out.view(), a = x.view();
    bool has_out = true, has_x = true;
  };
  struct Case {
    std::vector<const char*> said;
    void (*change)(Call&);
  };
  static int64_t three[] = {2, 2, 6}, four[] = {6, 4}, minus[] = {4, -6},
                 huge[] = {1ll << 40, 1ll << 40};
  static int64_t two[] = {12, 2}, back[] = {-6, 1}, zero[] = {0, 1}, far[] = {1ll << 60, 1};
  const Case cases[] = {
      {{"out is NULL"}, [](Call& c) { c.has_out = false; }},
      {{"x is NULL"}, [](Call& c) { c.has_x = false; }},
      {{"x", "ndim is 1"}, [](Call& c) { c.a.ndim = 1; }},
      {{"out", "ndim is 9"}, [](Call& c) { c.c.ndim = 9; }},
      {{"x", "no shape"}, [](Call& c) { c.a.shape = nullptr; }},
      {{"x", "code 2, 64 bits"}, [](Call& c) { c.a.type_bits = 64; }},
      {{"x", "2 lanes"}, [](Call& c) { c.a.type_lanes = 2; }},
      {{"out", "device_type is 2", "the host"}, [](Call& c) { c.c.device_type = 2; }},
      {{"[6, 4]", "[4, 6]"}, [](Call& c) { c.c.shape = four, c.c.strides = nullptr; }},
      {{"[2, 2, 6]"}, [](Call& c) { c.a.ndim = 3, c.a.shape = three, c.a.strides = nullptr; }},
      {{"x", "[4, -6]"}, [](Call& c) { c.a.shape = minus; }},
      {{"x", "too large"}, [](Call& c) { c.a.shape = huge; }},
      {{"x", "too large"}, [](Call& c) { c.a.strides = far; }},
      {{"x", "[12, 2]", "stride 1"}, [](Call& c) { c.a.strides = two; }},
      {{"x", "[-6, 1]"}, [](Call& c) { c.a.strides = back; }},
      {{"out", "[0, 1]", "elements overlap"}, [](Call& c) { c.c.strides = zero; }},
      {{"x", "data is NULL"}, [](Call& c) { c.a.data = nullptr; }},
      {{"x", "multiple of 4"}, [](Call& c) { c.a.byte_offset = 2; }},
      {{"out and x overlap"}, [](Call& c) { c.c.data = c.a.data + 4; }},
      {{"out and x overlap"}, [](Call& c) { c.c.data = c.a.data, c.c.type_bits = 16; }},
  };
  for (const Case& one : cases) {
    Call call;
    one.change(call);
    const auto before = std::pair(call.x.memory, call.out.memory);
    CHECK(muonrt_orthogonalize(call.has_out ? &call.c : nullptr, nullptr, with.handle,
                               call.has_x ? &call.a : nullptr,
                               nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
    const std::string message = muonrt_get_last_error();
    for (const char* text : one.said) {
      INFO(message);
      CHECK(message.find(text) != std::string::npos);
    }
    CHECK(before == std::pair(call.x.memory, call.out.memory));
  }
  // Column slices of the same rows do not overlap, although their address ranges do.
  Tensor rows(DType::kF32, {4, 12});
  rows.put(reference::gaussian(4, 12, 1));
  muonrt_dltensor_t left = rows.view(), right = rows.view();
  int64_t half[] = {4, 6};
  left.shape = right.shape = half;
  right.byte_offset = 6 * 4;
  CHECK(with.orthogonalize(left, right) == MUONRT_OK);
  right.byte_offset = 5 * 4;
  CHECK(with.orthogonalize(left, right) == MUONRT_ERROR_INVALID_ARGUMENT);
}

TEST_CASE("orthogonalizer: settings are rejected as by an optimizer", "[unit][abi]") {
  const auto message = [](void (*change)(muonrt_group_t&, muonrt_optimizer_options_t&)) {
    muonrt_group_t g = muon_group();
    muonrt_optimizer_options_t o = options();
    change(g, o);
    auto* handle = reinterpret_cast<muonrt_orthogonalizer_t*>(&g);
    CHECK(muonrt_orthogonalizer_create(&handle, &o, &g) >= MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK(handle == nullptr);
    return std::string(muonrt_get_last_error());
  };
  const auto has = [](const char* text) { return Catch::Matchers::Contains(text); };
  CHECK_THAT(message([](auto& g, auto&) { g.steps = 33; }), has("steps is 33"));
  CHECK_THAT(message([](auto& g, auto&) { g.form = 7; }), has("form is 7"));
  CHECK_THAT(message([](auto& g, auto&) { muonrt_group_init_adamw(&g); }), has("ADAMW"));
  CHECK_THAT(message([](auto& g, auto&) { g.struct_size = 8; }), has("struct_size is 8"));
  CHECK_THAT(message([](auto&, auto& o) { o.threads = 257; }), has("threads is 257"));
  CHECK_THAT(message([](auto&, auto& o) { o.device_index = 2; }), has("device_index is 2"));
  CHECK(muonrt_orthogonalizer_create(nullptr, nullptr, nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
}

TEST_CASE("orthogonalizer: a handle that is NULL, destroyed or of another type is rejected",
          "[unit][abi]") {
  Tensor x = tensor_of(reference::gaussian(2, 3, 1), DType::kF32), c(DType::kF32, {2, 2});
  muonrt_orthogonalizer_t* late = nullptr;
  muonrt_comm_t* comm = nullptr;
  REQUIRE(muonrt_orthogonalizer_create(&late, nullptr, nullptr) == MUONRT_OK);
  REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  muonrt_orthogonalizer_destroy(late);
  muonrt_orthogonalizer_destroy(late);
  muonrt_orthogonalizer_destroy(nullptr);
  for (const auto& [handle, said] :
       {std::pair<void*, const char*>{nullptr, "orthogonalizer is NULL"},
        {late, "an orthogonalizer that was destroyed before"},
        {comm, "orthogonalizer is a communicator; pass an orthogonalizer"}}) {
    auto* const o = static_cast<muonrt_orthogonalizer_t*>(handle);
    CHECK(muonrt_orthogonalize(&x.view(), nullptr, o, &x.view(), nullptr) ==
          MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_get_last_error(), Catch::Matchers::Contains(said));
    CHECK(muonrt_symmetric_product(&c.view(), o, 1, &x.view(), 0, nullptr, nullptr) ==
          MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_get_last_error(), Catch::Matchers::Contains(said));
  }
  muonrt_comm_destroy(comm);
}
