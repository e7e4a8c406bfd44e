// What steps make of parameters in float64, by tools/textbook: for the tests of `muonrt step`. It
// reads files and settings by itself, so that a key that the command reads wrongly is noticed.
// Usage: muonrt_reference CONFIG IN OUT GRADIENTS...   (one file for each step)
// CONFIG has the words of opt.json, and for what opt.json says in other ways: `parts`, a list of
// {rows, cols: lists of indices, lr_factor, axis}; `momentum`, a number or one for each step;
// `row_factors`, for each step what each row is multiplied with after it. OUT: every tensor as F64.

#include <fnmatch.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "textbook/textbook.hpp"

namespace {

using Json = nlohmann::ordered_json;
using textbook::List;
using textbook::Matrix;

[[noreturn]] void refuse(const std::string& problem) { throw std::runtime_error(problem); }

struct Tensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::vector<double> v;
};

template <class T>
T read_at(const std::string& bytes, size_t at) {
  T out;
  std::memcpy(&out, bytes.data() + at, sizeof out);
  return out;
}

double element(const std::string& dtype, const std::string& bytes, size_t at, size_t i) {
  if (dtype == "F32") return read_at<float>(bytes, at + 4 * i);
  if (dtype == "I64") return static_cast<double>(read_at<int64_t>(bytes, at + 8 * i));
  const auto half = read_at<uint16_t>(bytes, at + 2 * i);
  if (dtype == "BF16") return std::bit_cast<float>(uint32_t{half} << 16);
  refuse("dtype " + dtype);
}

std::vector<Tensor> read_tensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (all.size() < 8) refuse(path + " cannot be read");
  const auto header = read_at<uint64_t>(all, 0);
  const Json entries = Json::parse(all.substr(8, header));
  std::vector<Tensor> out;
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    Tensor& t = out.emplace_back(Tensor{name, entry.at("dtype"), entry.at("shape"), {}});
    int64_t count = 1;
    for (const int64_t n : t.shape) count *= n;
    const size_t at = 8 + header + entry.at("data_offsets").at(0).get<size_t>();
    for (size_t i = 0; i < static_cast<size_t>(count); ++i)
      t.v.push_back(element(t.dtype, all, at, i));
  }
  return out;
}

void write_tensors(const std::string& path, const std::vector<Tensor>& tensors) {
  Json header;
  std::string data;
  for (const Tensor& t : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(t.v.data()), t.v.size() * sizeof(double));
    header[t.name] = {{"dtype", "F64"}, {"shape", t.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length) << text << data;
  if (!file.flush()) refuse(path + " cannot be written");
}

using Keys = std::set<std::string>;
// Without effect on values in float64: layouts, forms of the same product, the order of the work.
const Keys kWithoutEffect = {
    "name",  "role", "placements", "grad_placements", "reading",  "cuts",    "row_bounds",
    "owner", "flat", "method",     "iteration_dtype", "restarts", "qk_clip", "precision"};
const Keys kOfAdamW = {"betas", "adam_eps", "adam_form", "update_every"};
const Keys kOfMuon = {
    "coefficients", "steps",         "lower_bound", "cushion", "safety",         "safety_mode",
    "momentum",     "momentum_kind", "nesterov",    "scale",   "scale_factor",   "normalize",
    "eps",          "row_scaling",   "normuon",     "blocks",  "momentum_dtype", "transport_dtype"};

/// Settings of one parameter: those of its rule over the defaults.
class Words {
 public:
  Words(const Json& defaults, const Json& rule) : words_(defaults) {
    for (const auto& [key, value] : rule.items()) words_[key] = value;
  }
  const Json* find(const std::string& key) {
    used_.insert(key);
    const auto found = words_.find(key);
    return found == words_.end() || found->is_null() ? nullptr : &*found;
  }
  template <class T>
  T get(const std::string& key, T otherwise) {
    return find(key) ? find(key)->get<T>() : otherwise;
  }
  double number(const std::string& key, double otherwise) { return get(key, otherwise); }
  std::string word(const std::string& key, std::string otherwise) { return get(key, otherwise); }
  template <class T>
  T choice(const std::string& key, const std::string& otherwise,
           const std::map<std::string, T>& known) {
    return known.at(word(key, otherwise));
  }
  void require_used(const Keys& of_others) const {
    for (const auto& [key, value] : words_.items())
      if (!used_.contains(key) && !kWithoutEffect.contains(key) && !of_others.contains(key))
        refuse("unknown key " + key);
  }

 private:
  Json words_;
  std::set<std::string> used_;
};

List divided(List list, double s) {
  for (auto& t : list) t = {t.a / s, t.b / std::pow(s, 3), t.c / std::pow(s, 5)};
  return list;
}

void take_list(Words& w, textbook::Muon& how) {
  using namespace textbook::lists;
  const Json* const given = w.find("coefficients");
  double safety = w.number("safety", 0);
  const double lower = w.number("lower_bound", 1e-3), cushion = w.number("cushion", 0.02);
  const std::string mode = w.word("safety_mode", "auto");
  int steps = w.get("steps", 0);
  how.safety = 1;
  if (given && given->is_array()) {
    for (const Json& t : *given) how.list.push_back({t.at(0), t.at(1), t.at(2)});
    return;
  }
  const std::string name = given ? given->get<std::string>() : how.aol ? "" : "polar_express";
  if (name.empty()) {
    how.list = kAolFlash;
  } else if (name == "polar_express") {
    if (safety == 0) safety = 1.02;
    if (steps == 0) steps = 5;
    how.list = textbook::polar_express(lower, steps, cushion,
                                       mode == "inner" || mode == "auto" ? safety : 1);
    if (mode == "all") how.list = divided(how.list, safety);
    how.safety = mode == "all" ? 1 : safety;
  } else if (name == "cans") {
    if (steps == 0) refuse("cans without steps");
    how.list = textbook::polar_express(lower, steps, 0, 1);
    how.safety = safety == 0 ? 1.02 : safety;
  } else if (name == "cubic") {
    how.list = kCubic, how.safety = safety == 0 ? 1.02 : safety;
  } else if (name == "classical") {
    how.list.assign(steps == 0 ? 10 : static_cast<size_t>(steps), {15.0 / 8, -10.0 / 8, 3.0 / 8});
  } else {
    const std::map<std::string, List> printed = {
        {"keller_jordan", kKellerJordan}, {"you", kYouJiacheng}, {"deepseek_v4", kDeepSeekV4}};
    how.list = printed.at(name);
  }
}

const std::map<std::string, textbook::Decay> kDecays = {
    {"decoupled", textbook::Decay::kDecoupled},
    {"independent", textbook::Decay::kIndependent},
    {"lr_squared", textbook::Decay::kLrSquared},
    {"cautious", textbook::Decay::kCautious}};

/// Its values, and its state between steps.
class Param {
 public:
  Param(Tensor& t, const Json& defaults, const Json& rule, uint32_t number, uint64_t seed)
      : t_(t),
        w_(defaults, rule),
        number_(number),
        seed_(seed),
        adamw_(rule.at("role") == "adamw") {
    precision_ = t.dtype == "BF16" ? w_.word("precision", "master") : "";
    const double lr = w_.number("lr", NAN) * w_.number("lr_factor", 1);
    adamw_ ? take_adamw(lr) : take_muon(lr, rule.at("role") == "stack");
    w_.require_used(adamw_ ? kOfMuon : kOfAdamW);
  }

  const Tensor& tensor() const { return t_; }
  void step(int64_t number, std::vector<double> g, double factor) {
    for (double& x : g) x *= factor;
    if (adamw_) {
      if ((number + 1) % every_ == 0)
        textbook::adamw_step(adam_, (number + 1) / every_, t_.v, m_, v_, g);
    } else {
      step_matrices(number, g);
    }
    if (precision_ == "plain") {
      Matrix all(1, std::ssize(t_.v));
      all.v = t_.v;
      t_.v = textbook::rounded(all, muonrt::DType::kBF16).v;
    }
    for (size_t i = 0; precision_ == "stochastic" && i < t_.v.size(); ++i)
      t_.v[i] = textbook::rounded_at_random(
          t_.v[i], textbook::random_bits(seed_, static_cast<uint64_t>(number), number_, i));
  }

 private:
  void take_adamw(double lr) {
    adam_.lr = lr;
    adam_.weight_decay = w_.number("weight_decay", 0.01);
    adam_.decay = w_.choice("weight_decay_kind", "decoupled", kDecays);
    const auto betas = w_.get<std::vector<double>>("betas", {0.9, 0.95});
    adam_.beta1 = betas.at(0);
    adam_.beta2 = betas.at(1);
    adam_.eps = w_.number("adam_eps", 1e-8);
    adam_.folded = w_.word("adam_form", "torch") == "folded";
    adam_.nesterov = w_.word("adam_form", "torch") == "nesterov";
    every_ = w_.get<int64_t>("update_every", 1);
    m_.resize(t_.v.size());
    v_.resize(t_.v.size());
  }

  void take_muon(double lr, bool stack) {
    using textbook::Normalize;
    using textbook::Scale;
    muon_.lr = lr;
    muon_.weight_decay = w_.number("weight_decay", 0.1);
    muon_.decay = w_.choice("weight_decay_kind", "decoupled", kDecays);
    muon_.heavy_ball = w_.word("momentum_kind", "ema") == "heavy_ball";
    corrected_ = w_.word("momentum_kind", "ema") == "ema_corrected";
    muon_.nesterov = w_.get("nesterov", true);
    muon_.scale = w_.choice<Scale>("scale", "match_rms",
                                   {{"original", Scale::kOriginal},
                                    {"match_rms", Scale::kMatchRms},
                                    {"ratio", Scale::kRatio},
                                    {"max_dim", Scale::kMaxDim},
                                    {"none", Scale::kNone}});
    muon_.scale_times = w_.number("scale_factor", 1);
    muon_.normalize = w_.choice<Normalize>("normalize", "prescaled",
                                           {{"prescaled", Normalize::kPrescaled},
                                            {"add_eps", Normalize::kAddEps},
                                            {"max_eps", Normalize::kMaxEps}});
    muon_.eps = w_.number("eps", 0);
    muon_.aol = w_.choice<bool>("row_scaling", "none", {{"none", false}, {"aol", true}});
    const bool travels_half = w_.word("transport_dtype", "bf16") == "bf16";
    muon_.transport = travels_half ? muonrt::DType::kBF16 : muonrt::DType::kF32;
    half_momentum_ = w_.choice<bool>("momentum_dtype", "f32", {{"f32", false}, {"bf16", true}});
    take_list(w_, muon_);
    if (const Json* const momentum = w_.find("momentum"))
      momenta_ = momentum->is_array() ? momentum->get<std::vector<double>>()
                                      : std::vector<double>{momentum->get<double>()};
    row_factors_ = w_.get<std::vector<std::vector<double>>>("row_factors", {});
    take_shape(stack);
    take_parts();
    if (const Json* const blocks = w_.find("blocks")) {
      grid_ = blocks->at("grid").get<std::vector<int64_t>>();
      period_ = blocks->at("period");
      block_factor_ = blocks->value("lr_factor", 1.0);
    }
  }

  void take_shape(bool stack) {
    const auto batch = static_cast<size_t>(stack ? w_.get("batch_dims", 1) : 0);
    const size_t first_col = batch + static_cast<size_t>(w_.get("row_dims", 1));
    turned_ = w_.get("transposed", false);
    for (size_t d = batch; d < t_.shape.size(); ++d) (d < first_col ? rows_ : cols_) *= t_.shape[d];
    const size_t matrices = t_.v.size() / static_cast<size_t>(rows_ * cols_);
    momentum_.assign(matrices, turned_ ? Matrix(cols_, rows_) : Matrix(rows_, cols_));
    moments_.resize(matrices);
  }

  void take_parts() {
    const Json* const normuon = w_.find("normuon");
    muon_.normuon = normuon != nullptr;
    if (normuon) muon_.normuon_beta2 = normuon->value("beta2", 0.95);
    const std::string axis = normuon ? normuon->value("axis", "rows") : "rows";
    const Matrix& shape = momentum_.at(0);
    if (const Json* const given = w_.find("parts")) {
      for (const Json& part : *given)
        add_part({part.at("rows"), part.at("cols"), part.value("lr_factor", 1.0)},
                 part.value("axis", axis));
    } else {
      add_part(textbook::whole_matrix(shape.rows, shape.cols), axis);
    }
  }
  void add_part(textbook::Part part, const std::string& axis) {
    part.normuon_columns =
        axis == "columns" || (axis == "longer" && part.cols.size() > part.rows.size());
    parts_.push_back(std::move(part));
  }

  Matrix cut(const std::vector<double>& flat, size_t matrix) const {
    Matrix out(rows_, cols_);
    const auto at = flat.begin() + static_cast<std::ptrdiff_t>(matrix * out.v.size());
    out.v.assign(at, at + static_cast<std::ptrdiff_t>(out.v.size()));
    return turned_ ? textbook::transpose(out) : out;
  }

  void step_matrices(int64_t number, const std::vector<double>& g) {
    const auto n = static_cast<size_t>(number);
    if (!momenta_.empty()) muon_.momentum = momenta_.size() > 1 ? momenta_.at(n) : momenta_[0];
    textbook::Muon how = muon_;
    if (corrected_) how.corrected_at = number + 1;
    std::vector<textbook::Part> parts = parts_;
    if (period_ > 0 && number % period_ != 0) {
      parts = textbook::cut_into(parts_, grid_.at(0), grid_.at(1));
      how.scale_times *= block_factor_;
    }
    for (size_t e = 0; e < momentum_.size(); ++e) {
      Matrix w = cut(t_.v, e);
      textbook::muon_step(how, parts, w, momentum_[e], cut(g, e), moments_[e]);
      if (half_momentum_) round_momentum(number, e);
      if (!row_factors_.empty())
        for (int64_t i = 0; i < w.rows; ++i)
          for (int64_t j = 0; j < w.cols; ++j)
            w(i, j) *= row_factors_.at(n).at(static_cast<size_t>(i));
      if (turned_) w = textbook::transpose(w);
      std::copy(w.v.begin(), w.v.end(), t_.v.begin() + static_cast<std::ptrdiff_t>(e * w.v.size()));
    }
  }

  /// Rounds what is kept to bf16 at random, by the place in the tensor.
  void round_momentum(int64_t number, size_t matrix) {
    Matrix stored = turned_ ? textbook::transpose(momentum_[matrix]) : momentum_[matrix];
    for (size_t i = 0; i < stored.v.size(); ++i)
      stored.v[i] = textbook::rounded_at_random(
          stored.v[i],
          textbook::random_bits(seed_ ^ textbook::kMomentumSeed, static_cast<uint64_t>(number),
                                number_, matrix * stored.v.size() + i));
    momentum_[matrix] = turned_ ? textbook::transpose(stored) : stored;
  }

  Tensor& t_;
  Words w_;
  uint32_t number_;
  uint64_t seed_;
  bool adamw_;
  std::string precision_;
  textbook::AdamW adam_;
  int64_t every_ = 1;
  std::vector<double> m_, v_;  // of AdamW
  textbook::Muon muon_;
  std::vector<double> momenta_;
  std::vector<std::vector<double>> row_factors_;
  int64_t rows_ = 1, cols_ = 1, period_ = 0;
  bool turned_ = false, corrected_ = false, half_momentum_ = false;
  std::vector<int64_t> grid_;
  double block_factor_ = 1;
  std::vector<textbook::Part> parts_;
  std::vector<Matrix> momentum_;
  std::vector<std::vector<std::vector<double>>> moments_;
};

const Json& rule_of(const Json& config, const std::string& name) {
  for (const Json& rule : config.at("rules"))
    if (fnmatch(rule.at("name").get<std::string>().c_str(), name.c_str(), 0) == 0) return rule;
  refuse("no rule for " + name);
}

void run(const Json& config, std::vector<Tensor>& tensors, const std::vector<std::string>& grads) {
  std::vector<Param> params;
  params.reserve(tensors.size());
  for (Tensor& t : tensors) {
    const Json& rule = rule_of(config, t.name);
    if (rule.at("role") == "frozen" || t.v.empty()) continue;
    params.emplace_back(t, config.value("defaults", Json::object()), rule,
                        static_cast<uint32_t>(params.size()), config.value("seed", uint64_t{0}));
  }
  for (size_t step = 0; step < grads.size(); ++step) {
    std::map<std::string, std::vector<double>> found;
    for (Tensor& t : read_tensors(grads[step])) found[t.name] = std::move(t.v);
    double factor = config.value("grad_scale_inv", 1.0), sum = 0;
    for (const Param& p : params)
      for (const double x : found.at(p.tensor().name)) sum += factor * x * factor * x;
    if (const double most = config.value("clip_norm", 0.0); most > 0 && std::sqrt(sum) > most)
      factor *= most / std::sqrt(sum);
    for (Param& p : params) p.step(static_cast<int64_t>(step), found.at(p.tensor().name), factor);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  try {
    std::vector<Tensor> tensors = read_tensors(argv[2]);
    run(Json::parse(std::ifstream(argv[1])), tensors, {argv + 4, argv + argc});
    write_tensors(argv[3], tensors);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "muonrt_reference: %s\n", e.what());
    return 1;
  }
  return 0;
}
