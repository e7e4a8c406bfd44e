// The float64 reference for `muonrt step`, based on tools/reference. It interprets opt.json itself,
// so that a test detects keys that the command misreads. Usage: muonrt_reference < INPUT > OUTPUT,
// both in JSON. INPUT has `config`, `tensors` (`shape` and `values` for each name) and `grads` (for
// each step, the values for each name). OUTPUT contains the values after all steps. `config` has
// the keys of opt.json, but the values of some keys have a different form. `parts` is a list of
// {rows, cols, lr_factor, normuon_axis}; rows and cols are lists of indices. `momentum` is a
// number, or a list with one number for each step. `row_factors` contains, for each step, the
// factors by which the rows are multiplied after the step.

#include "reference/reference.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using Json = nlohmann::ordered_json;
using reference::Decay;
using reference::List;
using reference::Matrix;
using reference::Normalize;
using reference::Scale;
using Values = std::vector<double>;

/// Returns the value that belongs to a name in opt.json. Throws if the name is unknown.
template <class T>
T choice(const Json& words, const char* key, const char* otherwise,
         const std::map<std::string, T>& known) {
  return known.at(words.value(key, otherwise));
}

Decay decay_of(const Json& words) {
  return choice<Decay>(words, "weight_decay_kind", "decoupled",
                       {{"decoupled", Decay::kDecoupled}, {"cautious", Decay::kCautious}});
}

List divided(List list, double s) {
  for (auto& t : list) t = {t.a / s, t.b / std::pow(s, 3), t.c / std::pow(s, 5)};
  return list;
}

void take_list(const Json& words, reference::Muon& how) {
  using namespace reference::lists;
  const Json given = words.value("coefficients", Json(how.aol ? "aol" : "polar_express"));
  if (given.is_array()) {
    how.safety = words.value("safety", 1.0);
    for (const Json& t : given) how.list.push_back({t.at(0), t.at(1), t.at(2)});
  } else if (given == "polar_express") {
    const std::string mode = words.value("safety_mode", "auto");
    how.safety = words.value("safety", 1.02);
    how.list = reference::polar_express(words.value("lower_bound", 1e-3), words.value("steps", 5),
                                        words.value("cushion", 0.02),
                                        mode == "inner" || mode == "auto" ? how.safety : 1);
    if (mode == "all") how.list = divided(how.list, std::exchange(how.safety, 1));
  } else {
    how.list = std::map<std::string, List>{{"keller_jordan", kKellerJordan},
                                           {"you_jiacheng", kYouJiacheng},
                                           {"deepseek_v4", kDeepSeekV4},
                                           {"aol", kAolFlash}}
                   .at(given);
  }
}

/// Returns the learning rate of a step. `lr` is either one rate for all steps, or a list with one
/// rate for each step.
double rate_of(const Json& words, int64_t step) {
  const Json& lr = words.at("lr");
  return (lr.is_array() ? lr.at(static_cast<size_t>(step)) : lr).get<double>() *
         words.value("lr_factor", 1.0);
}

/// A parameter with the settings of its rule, and its state between steps.
class Param {
 public:
  virtual ~Param() = default;
  /// Updates the weights.
  /// @param step  The number of the step, from 0.
  virtual void step(int64_t step, Values& weights, const Values& gradient) = 0;
};

class AdamW : public Param {
 public:
  AdamW(const Json& words, size_t size)
      : words_(words), every_(words.value("update_every", int64_t{1})), m_(size), v_(size) {
    const auto betas = words.value("betas", Values{0.9, 0.95});
    how_.weight_decay = words.value("weight_decay", 0.01);
    how_.decay = decay_of(words);
    how_.beta1 = betas.at(0);
    how_.beta2 = betas.at(1);
    how_.eps = words.value("adamw_eps", 1e-8);
    how_.folded = words.value("adam_form", "torch") == "folded";
    how_.nesterov = words.value("adam_form", "torch") == "nesterov";
  }

  void step(int64_t step, Values& weights, const Values& gradient) override {
    how_.lr = rate_of(words_, step);
    if ((step + 1) % every_ == 0)
      reference::adamw_step(how_, (step + 1) / every_, weights, m_, v_, gradient);
  }

 private:
  const Json words_;
  reference::AdamW how_;
  int64_t every_;
  Values m_, v_;
};

class Muon : public Param {
 public:
  Muon(const Json& words, const std::vector<int64_t>& shape, size_t size) : words_(words) {
    how_.weight_decay = words.value("weight_decay", 0.1);
    how_.decay = decay_of(words);
    how_.heavy_ball = words.value("momentum_kind", "ema") == "heavy_ball";
    corrected_ = words.value("momentum_kind", "ema") == "ema_corrected";
    how_.nesterov = words.value("nesterov", true);
    how_.scale = choice<Scale>(words, "scale_rule", "match_rms",
                               {{"original", Scale::kOriginal},
                                {"match_rms", Scale::kMatchRms},
                                {"ratio", Scale::kRatio},
                                {"max_dim", Scale::kMaxDim},
                                {"none", Scale::kNone}});
    how_.scale_times = words.value("scale_factor", 1.0);
    how_.normalize = choice<Normalize>(words, "normalize", "prescaled",
                                       {{"prescaled", Normalize::kPrescaled},
                                        {"add_eps", Normalize::kAddEps},
                                        {"max_eps", Normalize::kMaxEps}});
    how_.eps = words.value("normalize_eps", 0.0);
    how_.aol = words.value("row_scaling", "none") == "aol";
    how_.equilibrate = words.value("row_scaling", "none") == "equilibrate";
    how_.renormalize = words.value("renormalize", false);
    take_list(words, how_);
    const Json momentum = words.value("momentum", Json(how_.momentum));
    momenta_ = momentum.is_array() ? momentum.get<Values>() : Values{momentum};
    row_factors_ = words.value("row_factors", row_factors_);
    take_shape(words, shape, size);
    take_parts(words);
    if (words.contains("blocks")) {
      const Json& blocks = words.at("blocks");
      grid_ = blocks.at("grid").get<std::vector<int64_t>>();
      period_ = blocks.at("period");
      block_factor_ = blocks.value("lr_factor", 1.0);
    }
  }

  void step(int64_t step, Values& weights, const Values& gradient) override {
    const auto n = static_cast<size_t>(step);
    reference::Muon how = how_;
    how.lr = rate_of(words_, step);
    how.momentum = momenta_.size() > 1 ? momenta_.at(n) : momenta_.at(0);
    if (corrected_) how.corrected_at = step + 1;
    std::vector<reference::Part> parts = parts_;
    if (period_ > 0 && step % period_ != 0) {
      parts = reference::cut_into(parts_, grid_.at(0), grid_.at(1));
      how.scale_times *= block_factor_;
    }
    for (size_t e = 0; e < momentum_.size(); ++e) {
      Matrix w = matrix_of(weights, e);
      reference::muon_step(how, parts, w, momentum_[e], matrix_of(gradient, e), moments_[e]);
      for (int64_t i = 0; i < w.rows && !row_factors_.empty(); ++i)
        for (int64_t j = 0; j < w.cols; ++j)
          w(i, j) *= row_factors_.at(n).at(static_cast<size_t>(i));
      if (transposed_) w = reference::transpose(w);
      std::copy(w.v.begin(), w.v.end(),
                weights.begin() + static_cast<std::ptrdiff_t>(e * w.v.size()));
    }
  }

 private:
  void take_shape(const Json& words, const std::vector<int64_t>& shape, size_t size) {
    const bool stack = words.value("view", "none") == "stack";
    const auto batch = static_cast<size_t>(stack ? words.value("batch_dims", 1) : 0);
    const size_t first_col = batch + static_cast<size_t>(words.value("row_dims", 1));
    for (size_t d = batch; d < shape.size(); ++d) (d < first_col ? rows_ : cols_) *= shape[d];
    transposed_ = words.value("transposed", false);
    const size_t matrices = size / static_cast<size_t>(rows_ * cols_);
    momentum_.assign(matrices, transposed_ ? Matrix(cols_, rows_) : Matrix(rows_, cols_));
    moments_.resize(matrices);
  }

  void take_parts(const Json& words) {
    const Json normuon = words.value("normuon", Json::object());
    how_.normuon = words.contains("normuon");
    how_.normuon_beta2 = normuon.value("beta2", 0.95);
    const auto add = [&](reference::Part part, const std::string& axis) {
      part.normuon_columns =
          axis == "columns" || (axis == "longer" && part.cols.size() > part.rows.size());
      parts_.push_back(std::move(part));
    };
    const std::string axis = normuon.value("axis", "rows");
    for (const Json& part : words.value("parts", Json::array()))
      add({part.at("rows"), part.at("cols"), part.value("lr_factor", 1.0)},
          part.value("normuon_axis", axis));
    if (parts_.empty())
      add(reference::whole_matrix(momentum_.at(0).rows, momentum_.at(0).cols), axis);
  }

  Matrix matrix_of(const Values& flat, size_t matrix) const {
    Matrix out(rows_, cols_);
    const auto at = flat.begin() + static_cast<std::ptrdiff_t>(matrix * out.v.size());
    out.v.assign(at, at + static_cast<std::ptrdiff_t>(out.v.size()));
    return transposed_ ? reference::transpose(out) : out;
  }

  const Json words_;
  reference::Muon how_;
  Values momenta_;  // one for all steps, or one for each step
  std::vector<Values> row_factors_;
  int64_t rows_ = 1, cols_ = 1, period_ = 0;  // numbers of stored rows and columns
  bool transposed_ = false, corrected_ = false;
  std::vector<int64_t> grid_;
  double block_factor_ = 1;
  std::vector<reference::Part> parts_;
  std::vector<Matrix> momentum_;
  std::vector<std::vector<Values>> moments_;
};

/// Returns the keys of `defaults` and of the first rule that matches. Keys of the rule take
/// precedence, and a key that is null is removed.
Json words_of(const Json& config, const std::string& name) {
  Json out = config.value("defaults", Json::object());
  for (const Json& rule : config.at("rules")) {
    if (fnmatch(rule.at("name").get<std::string>().c_str(), name.c_str(), 0) != 0) continue;
    out.update(rule);
    for (const auto& [key, value] : rule.items())
      if (value.is_null()) out.erase(key);
    return out;
  }
  throw std::runtime_error("no rule for " + name);
}

Json run(const Json& config, const Json& tensors, const Json& grads) {
  std::map<std::string, Values> weights;
  std::map<std::string, std::unique_ptr<Param>> params;
  for (const auto& [name, tensor] : tensors.items()) {
    Values& values = weights[name] = tensor.at("values").get<Values>();
    const Json words = words_of(config, name);
    if (words.at("role") == "adamw")
      params[name] = std::make_unique<AdamW>(words, values.size());
    else if (words.at("role") != "frozen")
      params[name] = std::make_unique<Muon>(words, tensor.at("shape"), values.size());
  }
  for (size_t step = 0; step < grads.size(); ++step) {
    double factor = config.value("grad_scale_inv", 1.0), sum = 0;
    for (const auto& [name, param] : params)
      for (const double x : grads[step].at(name).get<Values>()) sum += factor * x * factor * x;
    if (const double most = config.value("clip_norm", 0.0); most > 0 && std::sqrt(sum) > most)
      factor *= most / std::sqrt(sum);
    for (const auto& [name, param] : params) {
      Values gradient = grads[step].at(name);
      for (double& x : gradient) x *= factor;
      param->step(static_cast<int64_t>(step), weights[name], gradient);
    }
  }
  return weights;
}

}  // namespace

int main() {
  try {
    const Json input = Json::parse(std::cin);
    std::cout << run(input.at("config"), input.at("tensors"), input.at("grads")) << "\n";
  } catch (const std::exception& e) {
    std::fprintf(stderr, "muonrt_reference: %s\n", e.what());
    return 1;
  }
  return 0;
}
