#include "train/curve.hpp"

#include <catch2/catch.hpp>
#include <cmath>

using namespace muonrt::train;

namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

std::vector<Curve> falling(const std::vector<std::string>& optimizers, int runs, int64_t steps) {
  std::vector<Curve> curves;
  for (size_t o = 0; o < optimizers.size(); ++o) {
    for (int run = 0; run < runs; ++run) {
      Curve curve{optimizers[o], std::to_string(run), {}};
      for (int64_t step = 1; step <= steps; ++step) {
        CurvePoint point;
        point.step = step;
        point.train_loss = 1.5 + 4.0 / std::sqrt(double(step)) + 0.1 * double(o);
        if (step % 10 == 0) point.val_loss = point.train_loss + 0.05 * run;
        curve.points.push_back(point);
      }
      curves.push_back(curve);
    }
  }
  return curves;
}

}  // namespace

TEST_CASE("train curve: the table has a field for each column, empty where nothing is known",
          "[unit][train]") {
  Curve muon{"muon", "1", {{10, 2.5, std::nan(""), 20480, 1.25}, {20, 0.1, 2.25, 40960, 2.5}}};
  Curve odd{"a,b \"c\"", "x", {{1, std::nan(""), std::nan(""), 0, 0.0}}};
  CHECK(curves_csv({muon, odd}) ==
        "step,optimizer,run,train_loss,val_loss,tokens,seconds\n"
        "10,muon,1,2.5,,20480,1.250\n"
        "20,muon,1,0.1,2.25,40960,2.500\n"
        "1,\"a,b \"\"c\"\"\",x,,,0,0.000\n");
}

TEST_CASE("train curve: the picture is well-formed and holds every line", "[unit][train]") {
  const std::string svg = curves_svg(falling({"muon", "adamw"}, 3, 200), "A < B & C", "sub");
  CHECK(count(svg, "<polyline") == 2 * 2 * 3);
  CHECK(count(svg, "A &lt; B &amp; C") == 1);
  for (const char* tag : {"svg", "text", "g", "clipPath"}) {
    const std::string name = tag;
    CHECK(count(svg, "<" + name + " ") == count(svg, "</" + name + ">"));
  }
  // Run r of muon ends at 1.5 + 4 / sqrt(200) + 0.05 r; the legend has the mean.
  CHECK(count(svg, ">muon: validation, 1.833 at the end (mean of 3 runs)<") == 1);
  CHECK(count(svg, ">adamw: validation, 1.933 at the end (mean of 3 runs)<") == 1);
}

TEST_CASE("train curve: a picture of little or nothing is still a picture", "[unit][train]") {
  for (const auto& curves :
       {std::vector<Curve>{}, std::vector<Curve>{{"muon", "1", {}}}, falling({"muon"}, 1, 1),
        falling({"muon"}, 1, 12),
        std::vector<Curve>{{"muon", "1", {{1, std::nan(""), 2.0, 1, 1.0}}}},
        std::vector<Curve>{{"muon", "1", {{1, INFINITY, INFINITY, 1, 1.0}}}}}) {
    const std::string svg = curves_svg(curves, "t", "s");
    CHECK(count(svg, "</svg>") == 1);
    CHECK(count(svg, "nan") == 0);
    CHECK(count(svg, "inf") == 0);
  }
}
