#include "pipeline/schedule.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <map>

#include "pipeline/trace.hpp"
#include "support/attempts.hpp"
#include "support/rank_check.hpp"
#include "support/wrapped_device.hpp"

using namespace muonrt;

TEST_CASE("schedule: the order of stages is the printed one", "[unit][pipeline]") {
  CHECK(to_text(schedule(4, 2, CommitMode::kAtomic)) ==
        "gather(0) gather(1) scan orthogonalize(0) gather(2) orthogonalize(1) gather(3) "
        "orthogonalize(2) orthogonalize(3) vote commit(0) commit(1) commit(2) commit(3) adamw");
  CHECK(
      to_text(schedule(3, 1, CommitMode::kAtomic)) ==
      "gather(0) scan orthogonalize(0) gather(1) orthogonalize(1) gather(2) orthogonalize(2) vote "
      "commit(0) commit(1) commit(2) adamw");
  CHECK(to_text(schedule(4, 2, CommitMode::kEager)) ==
        "scan vote gather(0) gather(1) adamw orthogonalize(0) gather(2) orthogonalize(1) commit(0) "
        "gather(3) orthogonalize(2) commit(1) orthogonalize(3) commit(2) commit(3) confirm");
  CHECK(to_text(schedule(2, 1, CommitMode::kEager)) ==
        "scan vote gather(0) adamw orthogonalize(0) commit(0) gather(1) orthogonalize(1) commit(1) "
        "confirm");
  CHECK(to_text(schedule(0, 3, CommitMode::kAtomic)) == "scan vote adamw");
}

TEST_CASE("schedule: exactly min(window, chunks) chunks are resident at the peak",
          "[unit][pipeline]") {
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    for (int32_t chunks = 0; chunks <= 12; ++chunks) {
      for (int window = 1; window <= 8; ++window) {
        int resident = 0, peak = 0;
        for (const Action& a : schedule(chunks, window, commit)) {
          if (a.stage == Stage::kOrthogonalize) --resident;
          if (a.stage == Stage::kGather) peak = std::max(peak, ++resident);
        }
        CHECK(resident == 0);
        CHECK(peak == std::min(window, chunks));
      }
    }
  }
}

TEST_CASE("schedule: every chunk is gathered, orthogonalized and committed once, in that order",
          "[unit][pipeline]") {
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    for (int window = 1; window <= 8; ++window) {
      std::map<int32_t, std::vector<Stage>> stages_of;
      std::map<int32_t, int> in_flight;
      for (const Action& a : schedule(11, window, commit)) {
        if (a.chunk >= 0) stages_of[a.chunk].push_back(a.stage);
        // An eager step must have committed an update before the update of the next chunk
        // overwrites its buffers.
        if (commit == CommitMode::kEager && a.stage == Stage::kOrthogonalize) {
          CHECK(in_flight[a.chunk % window]++ == 0);
        }
        if (commit == CommitMode::kEager && a.stage == Stage::kCommit)
          --in_flight[a.chunk % window];
      }
      CHECK(stages_of.size() == 11);
      for (const auto& [chunk, stages] : stages_of) {
        CHECK(stages == std::vector<Stage>{Stage::kGather, Stage::kOrthogonalize, Stage::kCommit});
      }
    }
  }
}

namespace {

/// A host device that needs a warm-up at creation, as GPUs do.
class WarmingUp : public wrapped::Device {
 public:
  using wrapped::Device::Device;
  bool needs_warm_up() const override { return true; }
};

std::unique_ptr<Device> warming_up(const OptimizerSettings& settings) {
  return std::make_unique<WarmingUp>(world::host_device(settings), [](Ops& ops) {
    return std::unique_ptr<Ops>(std::make_unique<wrapped::Ops>(ops));
  });
}

int64_t count(const std::string& text, const std::string& word) {
  int64_t found = 0;
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("trace: the times of a step's stages are kept, those of the warm-up are not",
          "[unit][pipeline]") {
  world::Case c = world::on_mesh({2});
  const Placement rows{PlacementKind::kShard, 0, 1};
  world::add(c, "wide", {6, 20}, {rows}).owner = 0;
  world::add(c, "tall", {24, 5}, {rows}).owner = 1;
  world::add(c, "bias", {7}, {rows});
  // The chunk of "table" is inactive in the first and in the third step.
  world::add(c, "table", {8, 5}, {{PlacementKind::kPartial, 0, 1}}).role = Role::kAdamW;
  c.params.back().partial_grads = 2;
  c.settings.groups = world::default_groups();
  c.settings.groups[1].update_every = 2;
  world::on_each(
      c,
      [](world::Rank& rank, Comm& comm) {
        const Pipeline& pipeline = rank.optimizer().pipeline();
        for (const Span& span : pipeline.spans()) RANK_CHECK(span.begin == 0 && span.end == 0);
        RANK_CHECK(pipeline.resident_peak() == 0);
        std::vector<int64_t> ran;
        for (int64_t s = 0; s < 3; ++s) {
          StepReport report;
          RANK_CHECK(rank.step(s, report) == Status::kOk);
          ran.push_back(0);
          int64_t sent = 0;
          for (const Span& span : pipeline.spans()) {
            RANK_CHECK(span.end >= span.begin);
            ran.back() += span.end > 0;
            sent += span.end > 0 ? span.bytes_sent : 0;
          }
          RANK_CHECK(s == 0 || sent == report.bytes_sent);  // the first step also compares replicas
        }
        RANK_CHECK(ran[1] > ran[0] && ran[2] == ran[0]);

        const std::string trace = chrome_trace(pipeline, comm.rank(), 3, 0);
        RANK_CHECK(count(trace, "\"X\"") == ran[2] && count(trace, "\"step\":3") == ran[2]);
        RANK_CHECK(count(trace, "\"vote\"") == 1 && count(trace, "\"adamw\"") == 1);
        RANK_CHECK(count(trace, "\"newton-schulz ") == 1);
        RANK_CHECK(count(trace, comm.rank() ? "\"matrices\":[\"tall\"]" : "[\"wide\"]") == 1);
        const auto first_time = [](const std::string& text) {
          return std::strtod(text.c_str() + text.find("\"ts\":") + 5, nullptr);
        };
        const std::string later = chrome_trace(pipeline, comm.rank(), 3, 5000);
        RANK_CHECK(std::fabs(first_time(later) - first_time(trace) - 5.0) < 1e-2);

        // A stream runs one operation at a time.
        std::vector<Span> spans = pipeline.spans();
        std::erase_if(spans, [](const Span& span) { return span.end == 0; });
        std::sort(spans.begin(), spans.end(),
                  [](const Span& a, const Span& b) { return a.begin < b.begin; });
        int64_t end[] = {0, 0};
        for (const Span& span : spans) {
          RANK_CHECK(span.begin >= end[span.on_comm()]);
          end[span.on_comm()] = span.end;
        }
      },
      warming_up);
}
