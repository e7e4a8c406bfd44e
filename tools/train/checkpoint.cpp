#include "train/checkpoint.hpp"

#include <sys/file.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "opt_json/output_file.hpp"
#include "opt_json/strict_json.hpp"
#include "train/optimizer.hpp"

namespace muonrt::train {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kFormat = "muonrt train 1";
/// The keys of an opt.json that do not affect the results of a run.
constexpr const char* kIgnoredKeys[] = {"about",        "chunk_bytes",   "window",      "commit",
                                        "replica_mode", "replica_check", "health_every"};

std::string run_file(const std::string& folder) { return folder + "/train.json"; }

/// Returns whether the folder holds a checkpoint, which always has a manifest.
bool holds_checkpoint(const std::string& folder) {
  std::error_code error;
  return fs::exists(folder + "/manifest.json", error);
}

std::string text_of(const json& value, int indent = -1) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

/// Returns the JSON value that represents a file: a hash of its content, so that its name does not
/// matter.
json content(const std::string& name, uint64_t hash) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return {{"name", name}, {"hash", digits}};
}

json optimizer_facts(const std::string& name) {
  json opt_json = tool::parse_strict(optimizer_text(name), name);
  for (const char* key : kIgnoredKeys) opt_json.erase(key);
  const std::string text = text_of(opt_json);
  return content(name, fingerprint({name, {text.begin(), text.end()}}));
}

/// Returns the settings that affect the results, keyed by the names of their options.
json facts_of(const SavedRun& run) {
  const Options& o = run.options;
  return {{"preset", o.preset},    {"optimizer", optimizer_facts(run.plan.optimizer)},
          {"lr", run.plan.lr},     {"qk-clip", o.qk_clip},
          {"steps", o.steps},      {"batch", o.batch},
          {"seed", run.plan.seed}, {"data", content(describe(run.text), fingerprint(run.text))},
          {"warmup", o.warmup},    {"final-lr", o.final_lr}};
}

/// Returns whether a run whose `option` has the value `here` can continue a run in which it had the
/// value `there`. The values must be equal, except that the new run can have more steps.
bool same(const std::string& option, const json& here, const json& there) {
  if (option == "steps") return there.is_number_integer() && there <= here;
  if (!here.is_object()) return here == there;
  return there.is_object() && there.contains("hash") && here["hash"] == there["hash"];
}

/// Locks the folder for one run.
FolderLock lock_folder(const std::string& folder) {
  const std::string path = folder + "/.muonrt-train-lock";
  FolderLock file(std::fopen(path.c_str(), "ae"), std::fclose);
  if (!file)
    throw std::runtime_error("--save: " + path + " cannot be written: " + std::strerror(errno) +
                             "; use a folder that you may write to");
  if (flock(fileno(file.get()), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return file;
  throw std::runtime_error("--save: " + folder +
                           " is in use, because another run saves into it; wait until that run has "
                           "ended, or name another folder");
}

}  // namespace

FolderLock SavedRun::begin_saving() const {
  const std::string& folder = options.save;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw std::runtime_error("--save: " + folder + " cannot be created: " + error.message() +
                             "; use a folder that you may write to");
  }
  FolderLock lock = lock_folder(folder);
  const bool resumes = !options.resume.empty() && fs::equivalent(folder, options.resume, error);
  if (holds_checkpoint(folder) && resumes) {
    json saved = tool::parse_strict(tool::read_text(run_file(folder)), run_file(folder));
    json& steps = saved["options"]["steps"];
    if (steps == json(options.steps)) return lock;
    steps = options.steps;
    tool::write_text_file(run_file(folder), text_of(saved, 1) + "\n");
    return lock;
  }
  if (holds_checkpoint(folder) && !options.overwrite) {
    throw std::runtime_error("--save: " + folder + " holds a checkpoint; continue it with " +
                             "--resume " + folder + ", name another folder, or pass --overwrite");
  }
  // Without a manifest, the folder holds no checkpoint, so train.json cannot become part of another
  // run's checkpoint.
  fs::remove(folder + "/manifest.json", error);
  // The file need not be flushed here, because the optimizer's save flushes the folder before it
  // publishes the checkpoint.
  const json all = {{"format", kFormat}, {"options", facts_of(*this)}, {"products", products}};
  tool::write_text_file(run_file(folder), text_of(all, 1) + "\n");
  return lock;
}

std::string SavedRun::require_resumable() const {
  const std::string& folder = options.resume;
  if (!holds_checkpoint(folder)) {
    throw std::runtime_error("--resume: " + folder +
                             " holds no checkpoint, because it has no manifest.json; " +
                             "use a folder of --save, or omit --resume");
  }
  std::error_code error;
  if (!fs::exists(run_file(folder), error)) {
    throw std::runtime_error("--resume: " + folder +
                             " holds a checkpoint of another program, because it has " +
                             "no train.json; use a folder of --save");
  }
  const json saved = tool::parse_strict(tool::read_text(run_file(folder)), run_file(folder));
  if (!saved.is_object() || saved.value("format", json()) != json(kFormat)) {
    throw std::runtime_error(run_file(folder) + ": its format is not '" + kFormat +
                             "'; resume with the muonrt that wrote it");
  }
  const json mine = facts_of(*this), there = saved.value("options", json::object());
  std::string problems;
  for (const auto& [option, here] : mine.items()) {
    const json other = there.is_object() ? there.value(option, json()) : json();
    if (same(option, here, other)) continue;
    problems += (problems.empty() ? "--" : "; --") + option + " is " + text_of(here) +
                ", but was " + text_of(other);
  }
  if (!problems.empty()) {
    throw std::runtime_error("--resume: " + folder + " belongs to another run: " + problems +
                             "; pass the arguments of that run, or start without --resume");
  }
  std::string notes;
  if (there["steps"] != mine["steps"])
    notes = "--resume: the run had " + text_of(there["steps"]) + " steps and is extended to " +
            text_of(mine["steps"]) + ", so the learning rates from here on are those of " +
            text_of(mine["steps"]) + " steps\n";
  const json before = saved.value("products", json());
  if (before == json(products)) return notes;
  return notes + "--resume: the run began with products of " + text_of(before) +
         " and continues with " + text_of(products) +
         ", so results may differ in their last bits\n";
}

}  // namespace muonrt::train
