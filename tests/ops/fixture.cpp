#include "ops/fixture.hpp"

namespace ops_test {

using namespace muonrt;

namespace {

/// Cuts a parameter into blocks at the given rows and columns. In the message, a gap of `gap`
/// elements precedes each block.
void add_blocks(Fixture& fixture, int32_t param, const std::vector<int64_t>& rows,
                const std::vector<int64_t>& cols, int64_t gap) {
  const int64_t ld = fixture.params[static_cast<size_t>(param)].cols;
  for (size_t r = 0; r + 1 < rows.size(); ++r) {
    for (size_t c = 0; c + 1 < cols.size(); ++c) {
      ShardBlock block{};
      block.param = param;
      block.rows = rows[r + 1] - rows[r];
      block.cols = cols[c + 1] - cols[c];
      block.local_offset = rows[r] * ld + cols[c];
      block.local_ld = ld;
      block.packed_offset = fixture.message_elements + gap;
      block.decay_scale = 0.5f + 0.25f * static_cast<float>(fixture.blocks.size() % 3);
      block.tensor_ld = ld + 5;
      block.tensor_index = (rows[r] + 3) * block.tensor_ld + cols[c] + 2;
      // These parameters have no row factors.
      if (param % 8 == 0) block.tensor_index += int64_t{1} << 33;
      block.update_scale = 0.2f + 0.1f * static_cast<float>(fixture.blocks.size() % 7);
      fixture.blocks.push_back(block);
      fixture.message_elements += gap + block.rows * block.cols;
    }
  }
}

/// Fills the groups, the scalars and the arrays with values that depend on the seed.
void fill(Fixture& fixture, uint64_t seed) {
  for (int i = 0; i < 4; ++i) {
    MuonScalars s;
    s.momentum = 0.9f + 0.02f * static_cast<float>(i);
    s.heavy_ball = i % 2;
    s.nesterov = i / 2;
    s.rate = 0.02f + 0.01f * static_cast<float>(i);
    s.decay = 0.003f;
    s.grad_scale = i == 1 ? 0.37f : 1.0f;
    fixture.groups.push_back(s);
  }
  for (size_t p = 0; p < fixture.params.size(); ++p) {
    const FixtureParam& param = fixture.params[p];
    const int64_t n = param.rows * param.cols;
    const uint64_t base = seed * 100 + p * 10;
    fixture.data.push_back(values(base, param.dtype, n));
    fixture.grad.push_back(values(base + 1, param.grad_dtype, n));
    fixture.master.push_back(values(base + 2, DType::kF32, param.master ? n : 0));
    fixture.momentum.push_back(values(base + 3, DType::kF32, n, 0.5f));
    Bytes variance = values(base + 4, DType::kF32, n, 0.5f);
    for (int64_t i = 0; i < n; ++i) {
      const float x = value_in(variance, DType::kF32, i);
      set_value(variance, DType::kF32, i, x * x);
    }
    fixture.variance.push_back(variance);
    Bytes remainder(static_cast<size_t>(2 * n));
    for (int64_t i = 0; i < 2 * n; ++i)
      remainder[static_cast<size_t>(i)] = static_cast<unsigned char>(bits_at(base + 5, i));
    fixture.remainder.push_back(remainder);
    fixture.factors.push_back(values(base + 6, DType::kF32, param.rows + 4));
    AdamScalars s;
    s.rate = 0.01f + 0.001f * static_cast<float>(p);
    s.decay = 0.0001f;
    s.correction1 = 1.7f;
    s.correction2 = 3.3f;
    s.grad_scale = p % 2 ? 0.37f : 1.0f;
    fixture.adam.push_back(s);
  }
}

}  // namespace

Fixture make_fixture(uint64_t seed) {
  constexpr DType f = DType::kF32, h = DType::kBF16;
  Fixture fixture;
  fixture.params = {{64, 300, f, f},
                    {40, 64, h, h, true, true, 1},
                    {33, 17, f, h, true, true, 2, 3},
                    {1, 20001, h, f, false, true, 3, 1},
                    {24, 48, h, h, false, false, 0},
                    {5, 9000, f, h, false, true, 1},
                    {1, 1, f, f, true, true, 2},
                    {96, 136, h, h, true, true, 3, 8},
                    // Each of these parameters has exactly one array with an unaligned address or
                    // row stride.
                    {8, 32, f, f, false, true, 0, 0, 1},
                    {10, 12, f, h, false, true, 1},
                    {10, 12, h, f, true, true, 2},
                    // The rows are contiguous, but a vector may span two rows, because the length
                    // of a row is not a multiple of the vector length.
                    {10, 12, h, f, false, true, 1},
                    {10, 12, h, h, false, true, 2},
                    {10, 12, h, f, true, true, 3}};
  add_blocks(fixture, 0, {0, 64}, {0, 300}, 0);
  add_blocks(fixture, 1, {0, 16, 40}, {0, 24, 64}, 0);
  add_blocks(fixture, 2, {0, 33}, {0, 5, 17}, 1);
  add_blocks(fixture, 3, {0, 1}, {0, 20001}, 2);
  add_blocks(fixture, 4, {0, 24}, {0, 16, 48}, 0);
  add_blocks(fixture, 5, {0, 2, 5}, {0, 8995, 9000}, 3);
  add_blocks(fixture, 6, {0, 1}, {0, 1}, 0);
  add_blocks(fixture, 7, {0, 96}, {0, 8, 136}, 7);
  fixture.message_elements = (fixture.message_elements + 7) / 8 * 8;
  add_blocks(fixture, 8, {0, 8}, {0, 32}, 0);
  add_blocks(fixture, 9, {0, 10}, {0, 8, 12}, 0);
  add_blocks(fixture, 10, {0, 10}, {0, 8, 12}, 0);
  for (int p = 11; p < 14; ++p) add_blocks(fixture, p, {0, 10}, {0, 12}, 0);
  fill(fixture, seed);
  return fixture;
}

Fixture make_fixture_of_forms(uint64_t seed) {
  Fixture fixture = make_fixture(seed);
  for (size_t p = 0; p < fixture.params.size(); ++p) {
    FixtureParam& param = fixture.params[p];
    param.clipped = p % 3 == 1 || p == 12;
    if (p % 2 == 0) {
      param.momentum_dtype = DType::kBF16;
      fixture.momentum[p] = values(seed + p, DType::kBF16, param.rows * param.cols);
    }
    if (param.dtype != DType::kBF16) continue;
    param.form = p % 2 ? WeightForm::kRemainder : WeightForm::kStochastic;
    if (p == 10) param.form = WeightForm::kRemainder;
    param.remainder_offset = p == 11;
    param.master = false;
    fixture.master[p].clear();
  }
  for (size_t g = 0; g < fixture.groups.size(); ++g) fixture.groups[g].cautious = g % 2;
  for (size_t p = 0; p < fixture.adam.size(); ++p) fixture.adam[p].cautious = p % 2;
  return fixture;
}

Fixture make_small_fixture(uint64_t seed) {
  Fixture fixture;
  fixture.params = {{5, 7}, {5, 7}, {5, 7}};
  add_blocks(fixture, 2, {0, 5}, {0, 7}, 0);
  add_blocks(fixture, 1, {0, 5}, {1, 7}, 0);
  add_blocks(fixture, 0, {0, 5}, {0, 7}, 0);
  fill(fixture, seed);
  return fixture;
}

void use_f32_momentum(Fixture& fixture) {
  for (size_t p = 0; p < fixture.params.size(); ++p) {
    FixtureParam& param = fixture.params[p];
    if (param.momentum_dtype == DType::kF32) continue;
    param.momentum_dtype = DType::kF32;
    fixture.momentum[p] = values(p, DType::kF32, param.rows * param.cols);
  }
}

std::vector<int32_t> all_params(const Fixture& fixture) {
  std::vector<int32_t> list;
  for (size_t p = 0; p < fixture.params.size(); ++p) list.push_back(static_cast<int32_t>(p));
  return list;
}

OnMachine::OnMachine(Machine& machine_in, const Fixture& fixture_in)
    : machine(machine_in), fixture(fixture_in) {
  for (size_t p = 0; p < fixture.params.size(); ++p) {
    const FixtureParam& param = fixture.params[p];
    ParamView view;
    view.param = machine.put(fixture.data[p], param.offset * size_of(param.dtype));
    if (param.active)
      view.grad = machine.put(fixture.grad[p],
                              (param.offset + param.grad_offset) * size_of(param.grad_dtype));
    view.master = reinterpret_cast<float*>(machine.put(fixture.master[p], param.offset * 4));
    view.form = param.master ? WeightForm::kMaster : param.form;
    view.momentum_dtype = param.momentum_dtype;
    view.seed = 0x123456789abcdef0;
    view.step = (uint64_t{1} << 40) + 17;
    // The key is an arbitrary number, not an index.
    view.key = 0xfffffff0u + static_cast<uint32_t>(p);
    if (view.form == WeightForm::kRemainder)
      view.remainder = reinterpret_cast<uint16_t*>(
          machine.put(fixture.remainder[p], (param.offset + param.remainder_offset) * 2));
    if (param.clipped) view.row_factors = reinterpret_cast<float*>(machine.put(fixture.factors[p]));
    view.momentum = machine.put(fixture.momentum[p], param.offset * size_of(param.momentum_dtype));
    view.variance = reinterpret_cast<float*>(machine.put(fixture.variance[p], param.offset * 4));
    view.numel = param.rows * param.cols;
    view.param_dtype = param.dtype;
    view.grad_dtype = param.grad_dtype;
    view.group = param.group;
    view.active = param.active;
    view.scalars = static_cast<int32_t>(p);
    host_views.push_back(view);
  }
  views = machine.put(host_views);
  groups = machine.put(fixture.groups);
  adam = machine.put(fixture.adam);
}

std::vector<Bytes> OnMachine::state() {
  std::vector<Bytes> out;
  const auto add = [&](const void* from, int64_t bytes) {
    out.push_back(from ? machine.get(static_cast<const unsigned char*>(from), bytes) : Bytes());
  };
  for (const ParamView& view : host_views) {
    add(view.param, view.numel * size_of(view.param_dtype));
    add(view.grad, view.numel * size_of(view.grad_dtype));
    add(view.master, view.numel * 4);
    add(view.momentum, view.numel * size_of(view.momentum_dtype));
    add(view.remainder, view.remainder ? view.numel * 2 : 0);
    add(view.variance, view.numel * 4);
  }
  return out;
}

void OnMachine::leave_out_momentum() {
  std::vector<ParamView> left = host_views;
  for (ParamView& view : left) view.momentum = nullptr;
  views = machine.put(left);
}

void OnMachine::leave_out_weights() {
  std::vector<ParamView> left = host_views;
  for (ParamView& view : left) {
    view.param = nullptr;
    view.master = nullptr;
    view.form = WeightForm::kParamOnly;
  }
  views = machine.put(left);
}

}  // namespace ops_test
