#include "train/curve.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "show/timeline.hpp"
#include "train/step_trace.hpp"

using namespace muonrt::train;

namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

}  // namespace

TEST_CASE("train curve: the table and the picture contain the known points and no others",
          "[unit][train]") {
  const double none = std::nan("");
  const std::vector<Curve> curves = {
      {"muon", {{10, 2.5, none, 20480, 1.25}, {20, 0.1, 2.25, 40960, 2.5}}},
      {"adamw", {{1, none, none, 0, 0.0}, {2, INFINITY, INFINITY, 1, 1.0}, {20, 2.5, 2.75, 5, 6}}}};
  CHECK(curves_csv(curves) ==
        "step,optimizer,train_loss,val_loss,tokens,seconds\n"
        "10,muon,2.5,,20480,1.250\n"
        "20,muon,0.1,2.25,40960,2.500\n"
        "1,adamw,,,0,0.000\n"
        "2,adamw,inf,inf,1,1.000\n"
        "20,adamw,2.5,2.75,5,6.000\n");
  const std::string svg = curves_svg(curves, "A < B & C", "sub");
  CHECK(count(svg, "<polyline") == 2 * 2);
  CHECK(count(svg, ">A &lt; B &amp; C<") == 1);
  CHECK(count(svg, ">muon: validation, 2.250 at the end<") == 1);
  CHECK(count(svg, ">adamw: validation, 2.750 at the end<") == 1);
  for (const auto& few : {curves, std::vector<Curve>{}, std::vector<Curve>{{"muon", {}}},
                          std::vector<Curve>{{"muon", {{1, none, 2.0, 1, 1.0}}}}}) {
    const std::string picture = curves_svg(few, "t", "s");
    CHECK(count(picture, "</svg>") == 1);
    CHECK(count(picture, "nan") + count(picture, "inf") == 0);
  }
}

TEST_CASE("timeline: each box is at the time of its span in the trace", "[unit][train]") {
  using muonrt::tool::Timeline;
  const std::string args = "\"args\":{\"step\":3,\"chunk\":1";
  // The trace has two ranks. There are 8 ms between the start of the first span and the end of the
  // last one, so a millisecond is 90 pixels wide. Only the last step is drawn, and step 2 is not
  // the last one.
  const std::string trace =
      "[{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0,\"args\":{\"name\":\"rank 0\"}},"
      "{\"ph\":\"X\",\"name\":\"vote\",\"pid\":0,\"tid\":1,\"ts\":10,\"dur\":5,\"args\":{\"step\":"
      "2}},"
      "{\"ph\":\"X\",\"name\":\"pack 1\",\"pid\":0,\"tid\":0,\"ts\":5e6,\"dur\":1600," +
      args +
      "}},{\"ph\":\"X\",\"name\":\"gather exchange 1\",\"pid\":0,\"tid\":1,\"ts\":5002000,"
      "\"dur\":2000," +
      args +
      ",\"bytes_sent\":2048}},{\"ph\":\"X\",\"name\":\"newton-schulz 1\",\"pid\":5,\"tid\":0,"
      "\"ts\":5004000,\"dur\":4000," +
      args + ",\"matrices\":[\"w\"]}}]";
  Timeline timeline{"T", "N", muonrt::tool::last_step(trace)};
  REQUIRE(timeline.spans.size() == 3);
  CHECK(timeline.spans[1].bytes == 2048);
  CHECK(timeline.spans[1].name == "gather exchange");
  CHECK(timeline.spans[2].work == Timeline::Work::kProducts);
  CHECK(timeline.shares() == "step 8 ms: products 25%, local passes 10%, waiting 65%");
  const std::string svg = timeline.svg();
  // Lanes are 18 pixels high, and boxes of local passes are 9 pixels high.
  const auto number = [&](size_t box, const std::string& name) {
    size_t at = 0;
    for (size_t i = 0; i <= box; ++i) at = svg.find("<rect x=", at) + 1;
    at = svg.find(" " + name + "=\"", at) + name.size() + 3;
    return std::strtod(svg.c_str() + at, nullptr);
  };
  const double left = number(0, "x"), top = number(0, "y") - 9;
  CHECK(number(0, "width") == Approx(1.6 * 90).margin(0.01));
  CHECK(number(0, "height") == Approx(9));
  CHECK(number(1, "x") == Approx(left + 2 * 90).margin(0.01));
  CHECK(number(1, "y") == Approx(top + 18));
  CHECK(number(1, "width") == Approx(2 * 90).margin(0.01));
  CHECK(number(2, "x") == Approx(left + 4 * 90).margin(0.01));
  CHECK(number(2, "y") == Approx(top + 2 * 18 + 10));
  CHECK(number(2, "width") == Approx(4 * 90).margin(0.01));
  for (const char* text :
       {">rank 0  compute<", ">rank 5  compute<", ">newton-schulz 1<", ">gather 1<", ">chunk 1<",
        ">8<", ">ms (low: pack",
        "rank 0: gather exchange of chunk 1, 2.000 to 4.000 ms, 2.00 KiB sent"}) {
    INFO(text);
    CHECK(count(svg, text) == 1);
  }
  CHECK_THROWS_WITH(Timeline{}.svg(), Catch::Contains("nothing to draw"));
}

TEST_CASE("trace: barriers bound the offset of a clock, and a shared clock has none",
          "[unit][train]") {
  // The clock of the other rank is 5000 us ahead. The other rank enters each barrier up to 20 us
  // later than rank 0.
  ClockReadings root, rank;
  for (size_t i = 0; i < ClockReadings::kBarriers; ++i) {
    const double at = 1000.0 * static_cast<double>(i), late = 20.0 - 2.0 * static_cast<double>(i);
    root.before[i] = at;
    root.after[i] = at + 30;
    rank.before[i] = at + 5000 + late;
    rank.after[i] = at + 5030;
  }
  const ClockOffset clock = compare_clocks(root, rank);
  CHECK(clock.offset + clock.error == Approx(30 - 5020));
  CHECK(clock.offset - clock.error == Approx(0 - 5030));
  CHECK(std::fabs(clock.offset + 5000) <= clock.error);
  const ClockOffset none = compare_clocks(root, root);
  CHECK((none.offset == 0 && none.error == 0));
}
