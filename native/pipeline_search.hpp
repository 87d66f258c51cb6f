// Pipelines of least period: a search over (cut, multiset of devices used), each stage split exactly into integer rows.
// Specified by its Python twin in downset/pipelines/exact_python.py. MACs and bytes are 64-bit, seconds double.
//
// Inside a block the devices lie in a fixed order. For a limit T on computing, the least communication C(T) is a shortest
// path over row boundaries; MACs and bytes of strip [lo, hi) are upper[hi] - lower[lo], so each device costs one sliding
// minimum. C falls in T, which bounds T + C(T) on every interval of T and lets the exact minimum be found by bisection.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace downset {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kBelow = 1.0 - 1e-9;  // values closer than this are equal

struct PipelineSegment {
    int rows = 1;
    // by row: MACs, and bytes in and out together
    std::vector<std::int64_t> macs_upper, macs_lower, macs_final, io_upper, io_lower, io_final;
};

struct PipelineProblem {
    int cuts = 0;
    std::vector<PipelineSegment> segments;       // (start, stop) at start * (cuts + 1) + stop
    std::vector<std::int64_t> macs_before;       // by cut
    std::vector<std::int64_t> handover;          // by cut: bytes charged between stages (0: not charged)
    std::vector<double> speed;                   // by device, in the order that strips lie in
    std::vector<int> type;                       // by device, ascending; devices of a type are interchangeable
    std::vector<std::vector<double>> per_byte;   // seconds, by pair
    std::vector<std::vector<double>> latency;    // seconds, by pair
    bool uniform = true;                         // all pairs alike
    bool overlap = false, shared = false;
    double latency_limit = kNever;
    bool several_blocks = true;
    std::vector<std::vector<int>> forbidden;  // by segment: devices (any of a type: all of it) that may not run it
};

struct PipelineStage {
    int leader = 0;
    std::vector<std::tuple<int, int, std::vector<int>>> blocks;  // start, stop, boundaries (one more than devices)
    std::vector<int> devices;
};

class PipelineSearch {
  public:
    PipelineSearch(const PipelineProblem& problem, double seconds, std::int64_t state_limit)
        : problem_(problem), count_(static_cast<int>(problem.speed.size())), state_limit_(state_limit),
          deadline_(std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                           std::chrono::duration<double>(std::max(0.0, seconds)))) {
        for (int device = 0; device < count_; ++device) {
            if (device == 0 || problem.type[device] != problem.type[device - 1]) first_.push_back(device), have_.push_back(0);
            ++have_.back();
        }
        sets_ = 1;
        for (int have : have_) {
            place_.push_back(sets_);
            sets_ *= have + 1;
            if (sets_ > (1 << 22)) throw std::invalid_argument("pipeline: too many different devices");
        }
        digits_.assign(sets_, {});
        members_.assign(sets_, {});
        set_speed_.assign(sets_, 0.0);
        for (int set = 0; set < sets_; ++set)
            for (std::size_t t = 0; t < have_.size(); ++t) {
                const int used = set / place_[t] % (have_[t] + 1);
                digits_[set].push_back(used);
                for (int k = 0; k < used; ++k) members_[set].push_back(first_[t] + k), set_speed_[set] += problem.speed[first_[t]];
            }
    }

    // Finds the least period below `incumbent`. {period (infinity: none below), stages}; bound() holds for every plan of
    // the space searched, finished() tells whether the search ended.
    std::pair<double, std::vector<PipelineStage>> run(double incumbent) {
        const double total = static_cast<double>(problem_.macs_before[problem_.cuts]);
        bound_ = set_speed_[sets_ - 1] > 0 ? total / set_speed_[sets_ - 1] : kNever;
        std::pair<double, std::vector<PipelineStage>> best{kNever, {}};
        double low = bound_, high = incumbent;
        if (!problem_.shared) {
            // One block a stage first: quick, and a close limit for the search with several.
            const bool twice = problem_.several_blocks && !problem_.overlap;
            several_ = false;
            for (double step = 0.01;; step *= 2) {
                const double limit = std::min(high, low > 0 ? bound_ * (1 + step) : high);
                auto found = pass(limit);
                if (stopped_) return best;
                if (found.first < limit) {
                    best = std::move(found);
                    high = best.first;
                    break;
                }
                low = limit;
                if (limit >= high || step > 1e29) break;  // nothing even without a limit to speak of
                if (step > 1e6) step = 1e30;
            }
            if (twice) {
                several_ = true;
                auto found = pass(high * kBelow);
                if (stopped_) return best;
                if (found.first < high * kBelow) best = std::move(found), high = best.first;
            }
            bound_ = high;
            finished_ = true;
            return best;
        }
        while (low < high * kBelow) {
            const bool last = high == kNever ? false : low > high * (1 - 1e-6);
            const double limit = high == kNever ? std::max(2 * low, 1e-9) : last ? high * kBelow : (low + high) / 2;
            auto found = pass(limit);
            if (stopped_) break;
            if (found.first <= limit * (1 + 1e-12)) {
                best = std::move(found);
                high = std::min(best.first, limit);
            } else {
                low = limit;
                if (last) break;
                if (limit > 1e30) break;
            }
        }
        finished_ = !stopped_;
        bound_ = finished_ ? (best.first < kNever ? best.first : high) : low;
        return best;
    }

    // The plan of least latency, whatever its period.
    std::pair<double, std::vector<PipelineStage>> least_latency() {
        by_latency_ = true;
        return pass(kNever);
    }

    double bound() const { return bound_; }
    bool finished() const { return finished_; }
    std::int64_t states() const { return states_; }

  private:
    struct Label {
        double period, medium, latency;
        int parent;               // index into labels_
        int start, stop, set, used, leader;
        double limit;             // of the option chosen: computing limit, or the cutoff of several blocks
        bool several;
    };
    struct Choice {
        double compute = kNever, transfer = kNever, limit = kNever;
        int leader = -1;          // position among the set's devices
        bool several = false;
    };
    struct Known {
        double value = kNever, limit = kNever, above = 0;  // value exact if finite; else it is proven to be >= above
    };

    const PipelineProblem& problem_;
    int count_, sets_ = 1;
    std::vector<int> first_, have_, place_;
    std::vector<std::vector<int>> digits_, members_;
    std::vector<double> set_speed_;
    std::int64_t state_limit_, states_ = 0;
    std::chrono::steady_clock::time_point deadline_;
    bool stopped_ = false, finished_ = false, by_latency_ = false, several_ = true;
    double bound_ = 0;
    std::unordered_map<std::int64_t, Known> known_;
    std::unordered_map<std::int64_t, double> least_compute_;
    std::vector<Label> labels_;
    std::unordered_map<std::int64_t, std::vector<Choice>> ways_;
    std::vector<Choice> scratch_;
    std::vector<double> now_, next_;
    std::vector<std::vector<int>> from_;
    std::vector<std::pair<int, double>> window_;

    const PipelineSegment& segment(int start, int stop) const { return problem_.segments[start * (problem_.cuts + 1) + stop]; }
    double macs(int start, int stop) const {
        return static_cast<double>(problem_.macs_before[stop] - problem_.macs_before[start]);
    }
    double capacity(int device, double limit) const { return limit * problem_.speed[device] * (1 + 1e-12) + 1e-6; }

    bool out_of_time() {
        ++states_;
        if ((states_ & 63) == 0 && std::chrono::steady_clock::now() > deadline_) stopped_ = true;
        if (states_ > state_limit_) stopped_ = true;
        return stopped_;
    }

    // Whether the devices can cover the frame, each within the limit; then the longest any of them really takes.
    bool covers(const PipelineSegment& seg, const std::vector<int>& devices, double limit, double& longest) const {
        int row = 0;
        longest = 0;
        for (int device : devices) {
            const double room = capacity(device, limit);
            if (seg.macs_final[row] <= room) {
                longest = std::max(longest, seg.macs_final[row] / problem_.speed[device]);
                return true;
            }
            // the furthest row below the end; nothing falls in between
            const auto begin = seg.macs_upper.begin() + row + 1, end = seg.macs_upper.begin() + seg.rows;
            const auto stop = begin < end ? std::upper_bound(begin, end, seg.macs_lower[row] + static_cast<std::int64_t>(room)) : begin;
            const int reached = static_cast<int>(stop - seg.macs_upper.begin()) - 1;
            if (reached > row) {
                longest = std::max(longest, (seg.macs_upper[reached] - seg.macs_lower[row]) / problem_.speed[device]);
                row = reached;
            }
        }
        return false;
    }

    // The least time in which the set can compute a block, communication aside.
    double least_compute(int start, int stop, int set) {
        const std::int64_t key = (static_cast<std::int64_t>(start) * (problem_.cuts + 1) + stop) * sets_ + set;
        const auto at = least_compute_.find(key);
        if (at != least_compute_.end()) return at->second;
        const auto& seg = segment(start, stop);
        const auto& devices = members_[set];
        double fastest = 0;
        for (int device : devices) fastest = std::max(fastest, problem_.speed[device]);
        double high = seg.macs_final[0] / fastest, low = macs(start, stop) / set_speed_[set], longest = high;
        if (covers(seg, devices, high, longest)) high = longest;
        while (low < high * kBelow) {
            const double middle = (low + high) / 2;
            if (covers(seg, devices, middle, longest)) high = std::min(middle, longest);
            else low = middle;
        }
        return least_compute_[key] = high;
    }

    // The least communication with every device's computing within the limit; infinity where they cannot.
    // `bounds`, if given, receives the row boundaries.
    double least_transfer(const PipelineSegment& seg, const std::vector<int>& devices, int leader, double limit,
                          std::vector<int>* bounds, double* longest) {
        const int rows = seg.rows, n = static_cast<int>(devices.size());
        now_.assign(rows + 1, kNever);
        now_[0] = 0;
        if (static_cast<int>(from_.size()) < n) from_.resize(n);
        for (int k = 0; k < n; ++k) {
            const int device = devices[k], head = devices[leader];
            const double cost = k == leader ? 0 : problem_.per_byte[head][device];
            const double fixed = k == leader ? 0 : 2 * problem_.latency[head][device];
            const double room = capacity(device, limit);
            auto& from = from_[k];
            from.resize(rows + 1);
            next_ = now_;
            for (int r = 0; r <= rows; ++r) from[r] = r;
            window_.clear();
            std::size_t front = 0;
            for (int r = 1; r < rows; ++r) {
                if (now_[r - 1] < kNever) {
                    const double value = now_[r - 1] - cost * static_cast<double>(seg.io_lower[r - 1]);
                    while (window_.size() > front && window_.back().second >= value) window_.pop_back();
                    window_.emplace_back(r - 1, value);
                }
                while (front < window_.size() && static_cast<double>(seg.macs_upper[r] - seg.macs_lower[window_[front].first]) > room) ++front;
                if (front == window_.size()) continue;
                const double value = window_[front].second + cost * static_cast<double>(seg.io_upper[r]) + fixed;
                if (value < next_[r]) next_[r] = value, from[r] = window_[front].first;
            }
            for (int r = 0; r < rows; ++r) {
                if (now_[r] == kNever || static_cast<double>(seg.macs_final[r]) > room) continue;
                const double value = now_[r] + cost * static_cast<double>(seg.io_final[r]) + fixed;
                if (value < next_[rows]) next_[rows] = value, from[rows] = r;
            }
            std::swap(now_, next_);
        }
        const double result = now_[rows];
        if (result == kNever || (!bounds && !longest)) return result;
        std::vector<int> found(n + 1, rows);
        double worst = 0;
        for (int k = n - 1, r = rows; k >= 0; --k) {
            const int lower = from_[k][r];
            if (lower < r) {
                const std::int64_t work = r == rows ? seg.macs_final[lower] : seg.macs_upper[r] - seg.macs_lower[lower];
                worst = std::max(worst, work / problem_.speed[devices[k]]);
            }
            found[k] = r = lower;
        }
        if (longest) *longest = worst;
        if (bounds) *bounds = std::move(found);
        return result;
    }

    // The least T + C(T) of a block below the cutoff, exactly; infinity: none below.
    Known sum_of(int start, int stop, int set, int leader, double cutoff) {
        const std::int64_t key =
            ((static_cast<std::int64_t>(start) * (problem_.cuts + 1) + stop) * sets_ + set) * (count_ + 1) + leader;
        auto& known = known_[key];
        if (known.value < kNever || known.above >= cutoff) return known;
        const auto& seg = segment(start, stop);
        const auto& devices = members_[set];
        const double least = least_compute(start, stop, set);
        double best = cutoff, best_limit = kNever;
        const double alone = seg.macs_final[0] / problem_.speed[devices[leader]];
        if (alone < best) best = best_limit = alone;
        if (devices.size() > 1 && least < best) {
            struct Span {
                double low, low_cost, high, high_cost;
            };
            const auto look = [&](double limit, double& really) {
                really = limit;
                const double transfer = least_transfer(seg, devices, leader, limit, nullptr, &really);
                if (transfer < kNever && really + transfer < best * kBelow) best = really + transfer, best_limit = limit;
                return transfer;
            };
            double really;
            const double end = std::min(best, alone);
            const double end_cost = look(end, really);
            const double end_really = really;
            if (least + end_cost < best * kBelow) {
                const double start_cost = look(least, really);
                std::vector<Span> spans{{least, start_cost, end_really, end_cost}};
                while (!spans.empty()) {
                    const Span span = spans.back();
                    spans.pop_back();
                    if (span.low + span.high_cost >= best * kBelow || span.high <= span.low * (1 + 1e-12)) continue;
                    if (span.low_cost == span.high_cost) continue;
                    if (out_of_time()) break;
                    const double middle = (span.low + span.high) / 2;
                    const double cost = look(middle, really);
                    spans.push_back({middle, cost, span.high, span.high_cost});
                    spans.push_back({span.low, span.low_cost, std::min(really, middle), cost});
                }
            }
        }
        if (best < cutoff) known.value = best, known.limit = best_limit;
        else known.above = cutoff;
        return known;
    }

    // Several blocks one after another on the same devices: the shortest path over their exact sums, evaluated lazily.
    double several_blocks(int start, int stop, int set, int leader, double cutoff, std::vector<std::pair<int, int>>* path) {
        const int length = stop - start;
        std::vector<double> weight((length + 1) * (length + 1), kNever);
        std::vector<char> exact(weight.size(), 0);
        for (int a = 0; a < length; ++a)
            for (int b = a + 1; b <= length; ++b) {
                if (a == 0 && b == length) continue;
                weight[a * (length + 1) + b] = least_compute(start + a, start + b, set);
            }
        std::vector<double> distance(length + 1);
        std::vector<int> previous(length + 1);
        while (true) {
            std::fill(distance.begin(), distance.end(), kNever);
            distance[0] = 0;
            for (int b = 1; b <= length; ++b)
                for (int a = 0; a < b; ++a)
                    if (distance[a] + weight[a * (length + 1) + b] < distance[b])
                        distance[b] = distance[a] + weight[a * (length + 1) + b], previous[b] = a;
            if (distance[length] >= cutoff * kBelow) return kNever;
            bool all = true;
            for (int b = length; b > 0; b = previous[b]) {
                const int edge = previous[b] * (length + 1) + b;
                if (exact[edge]) continue;
                all = false;
                // What the other blocks of this path leave is all that this one may take.
                const double left = cutoff - (distance[length] - weight[edge]);
                const Known known = sum_of(start + previous[b], start + b, set, leader, left);
                if (stopped_) return kNever;
                if (known.value < kNever) weight[edge] = known.value, exact[edge] = 1;
                else weight[edge] = std::max(known.above, left);
                break;
            }
            if (!all) continue;
            if (path)
                for (int b = length; b > 0; b = previous[b]) path->insert(path->begin(), {start + previous[b], start + b});
            return distance[length];
        }
    }

    // Ways to run units [start, stop) on the set with the leader at a position, every one within the limits.
    void choices(int start, int stop, int set, int leader, double hand, double limit, std::vector<Choice>& found) {
        const auto& devices = members_[set];
        const auto& seg = segment(start, stop);
        const bool summed = !problem_.overlap && !problem_.shared;
        if (summed || by_latency_) {
            Choice best;
            const double cutoff = limit - hand;
            const Known known = sum_of(start, stop, set, leader, cutoff);
            if (known.value < cutoff) best = {known.value, 0, known.limit, leader, false};
            if (several_ && problem_.several_blocks && devices.size() > 1 && stop - start > 1) {
                const double least = std::min(cutoff, best.compute);
                const double value = several_blocks(start, stop, set, leader, least, nullptr);
                if (value < least) best = {value, 0, least, leader, true};
            }
            if (best.leader >= 0) found.push_back(best);
            return;
        }
        const auto offer = [&](double at) {
            double really = 0;
            const double transfer = least_transfer(seg, devices, leader, at, nullptr, &really);
            if (transfer == kNever) return;
            const double whole = problem_.overlap ? std::max(really, transfer + hand) : really + transfer + hand;
            if (whole <= limit * (1 + 1e-12)) found.push_back({really, transfer, at, leader, false});
        };
        const double least = least_compute(start, stop, set);
        if (least > limit * (1 + 1e-12)) return;
        if (problem_.overlap && problem_.shared) {
            offer(limit);
        } else if (problem_.overlap) {  // the least of max(T, C(T) + hand): C falls
            double low = least, high = limit, really = 0;
            for (int i = 0; i < 60 && low < high * kBelow; ++i) {
                const double middle = (low + high) / 2;
                if (least_transfer(seg, devices, leader, middle, nullptr, &really) + hand <= middle) high = middle;
                else low = middle;
            }
            offer(high);
            offer(low);
        } else {  // the largest T with T + C(T) + hand within the limit has the least C
            const Known known = sum_of(start, stop, set, leader, limit * (1 + 1e-12) - hand);
            if (known.value == kNever) return;
            double low = known.limit, high = limit - hand, really = 0;
            offer(low);
            for (int i = 0; i < 60 && low < high * kBelow; ++i) {
                const double middle = (low + high) / 2;
                const double transfer = least_transfer(seg, devices, leader, middle, nullptr, &really);
                if (really + transfer + hand <= limit) low = middle;
                else high = middle;
            }
            offer(low);
        }
        if (problem_.latency_limit < kNever) {
            const Known known = sum_of(start, stop, set, leader, kNever);
            if (known.value < kNever) offer(known.limit);
        }
    }

    double hand_over(int cut, int from, int to) const {
        if (cut == 0 || problem_.handover[cut] == 0) return 0;
        if (problem_.uniform) return count_ > 1 ? problem_.handover[cut] * problem_.per_byte[0][1] + problem_.latency[0][1] : 0;
        return problem_.handover[cut] * problem_.per_byte[from][to] + problem_.latency[from][to];
    }

    // One search for plans with every stage (and the medium) within `limit`. On links: the least period below it.
    std::pair<double, std::vector<PipelineStage>> pass(double limit) {
        const int cuts = problem_.cuts;
        const int heads = problem_.uniform ? 1 : count_;
        labels_.clear();
        std::vector<std::vector<int>> table(static_cast<std::size_t>(sets_) * (cuts + 1) * heads);
        const auto slot = [&](int used, int cut, int head) -> std::vector<int>& {
            return table[(static_cast<std::size_t>(used) * (cuts + 1) + cut) * heads + head];
        };
        labels_.push_back({0, 0, 0, -1, 0, 0, 0, 0, -1, 0, false});
        slot(0, 0, 0).push_back(0);
        ways_.clear();
        const double slack = limit * (1 + 1e-9);
        for (int used = 0; used < sets_; ++used)
            for (int cut = 0; cut < cuts; ++cut) {
                bool any = false;
                for (int head = 0; head < heads; ++head) any |= !slot(used, cut, head).empty();
                if (!any) continue;
                if (!by_latency_ && macs(cut, cuts) > slack * (set_speed_[sets_ - 1] - set_speed_[used]) + 1) continue;
                for (int set = 1; set < sets_; ++set) {
                    bool fits = true;
                    for (std::size_t t = 0; t < have_.size(); ++t) fits &= digits_[set][t] + digits_[used][t] <= have_[t];
                    if (!fits) continue;
                    double fastest = 0;
                    for (int device : members_[set]) fastest = std::max(fastest, problem_.speed[device]);
                    const double left = set_speed_[sets_ - 1] - set_speed_[used] - set_speed_[set];
                    for (int stop = cut + 1; stop <= cuts; ++stop) {
                        const double work = macs(cut, stop);
                        if (!by_latency_ && work > slack * set_speed_[set] + 1) break;
                        if (!by_latency_ && macs(stop, cuts) > slack * left + 1) continue;
                        if (problem_.shared && problem_.overlap && !by_latency_ && problem_.latency_limit == kNever &&
                            members_[set].size() > 1 && segment(cut, stop).macs_final[0] <= limit * fastest && problem_.forbidden[cut * (cuts + 1) + stop].empty())
                            continue;  // the fastest alone sends nothing
                        if (!allowed(cut, stop, set)) continue;
                        if (out_of_time()) return {kNever, {}};
                        // Several blocks can take less than one: they compute less twice.
                        const bool fused = !several_ || problem_.overlap || problem_.shared || members_[set].size() == 1;
                        if (!by_latency_ && fused && least_compute(cut, stop, set) >= slack) continue;
                        expand(used, cut, set, stop, limit, heads, slot);
                        if (stopped_) return {kNever, {}};
                    }
                }
            }
        int best = -1;
        for (int used = 0; used < sets_; ++used)
            for (int head = 0; head < heads; ++head)
                for (int index : slot(used, cuts, head))
                    if (best < 0 || key(labels_[index]) < key(labels_[best])) best = index;
        if (best < 0) return {kNever, {}};
        const Label end = labels_[best];
        return {std::max(end.period, problem_.shared ? end.medium : 0.0), rebuild(best)};
    }

    bool allowed(int start, int stop, int set) const {
        for (int device : problem_.forbidden[start * (problem_.cuts + 1) + stop])
            for (int member : members_[set])
                if (problem_.type[member] == problem_.type[device]) return false;
        return true;
    }

    double key(const Label& label) const {
        if (by_latency_) return label.latency;
        return std::max(label.period, problem_.shared ? label.medium : 0.0);
    }

    // All ways to run a segment on a set within the pass's limit. Where all pairs of devices are alike they do not
    // depend on the stage before, and are worked out once a pass.
    const std::vector<Choice>& ways(int cut, int stop, int set, int head, double limit) {
        const std::int64_t key = (static_cast<std::int64_t>(cut) * (problem_.cuts + 1) + stop) * sets_ + set;
        if (problem_.uniform) {
            const auto at = ways_.find(key);
            if (at != ways_.end()) return at->second;
        }
        std::vector<Choice>& found = problem_.uniform ? ways_[key] : scratch_;
        found.clear();
        const auto& devices = members_[set];
        const bool one = problem_.uniform && !problem_.overlap && !problem_.shared;
        double best = limit;  // on plain links only the best leader counts
        for (int leader = 0; leader < static_cast<int>(devices.size()); ++leader) {
            const double hand = hand_over(cut, head, devices[leader]);
            const auto before = found.size();
            choices(cut, stop, set, leader, hand, one ? best : limit, found);
            if (stopped_) return found;
            if (one && found.size() > before) {
                best = std::min(best, found.back().compute + found.back().transfer + hand);
                found.erase(found.begin(), found.end() - 1);
            }
        }
        return found;
    }

    template <typename Slot>
    void expand(int used, int cut, int set, int stop, double limit, int heads, Slot& slot) {
        const auto& devices = members_[set];
        for (int head = 0; head < heads; ++head) {
            if (slot(used, cut, head).empty()) continue;
            for (const Choice& choice : ways(cut, stop, set, head, limit)) {
                if (stopped_) return;
                const double transfer = choice.transfer + hand_over(cut, head, devices[choice.leader]);
                const double whole = problem_.overlap ? std::max(choice.compute, transfer) : choice.compute + transfer;
                const int target_head = problem_.uniform ? 0 : devices[choice.leader];
                for (std::size_t i = 0; i < slot(used, cut, head).size(); ++i) {
                    const int parent = slot(used, cut, head)[i];
                    const Label& before = labels_[parent];
                    const Label label{std::max(before.period, whole), before.medium + transfer,
                                      before.latency + choice.compute + transfer, parent, cut, stop, set, used,
                                      choice.leader, choice.limit, choice.several};
                    if (label.latency > problem_.latency_limit * (1 + 1e-12)) continue;
                    if (problem_.shared && !by_latency_ && label.medium > limit * (1 + 1e-12)) continue;
                    insert(slot(used + set, stop, target_head), label);
                }
            }
            if (stopped_) return;
        }
    }

    bool covers_label(const Label& a, const Label& b) const {
        if (by_latency_) return a.latency <= b.latency;
        if (problem_.latency_limit < kNever && a.latency > b.latency) return false;
        if (problem_.shared) return a.medium <= b.medium;
        return a.period <= b.period;
    }

    void insert(std::vector<int>& labels, const Label& label) {
        for (int index : labels)
            if (covers_label(labels_[index], label)) return;
        labels.erase(std::remove_if(labels.begin(), labels.end(), [&](int index) { return covers_label(label, labels_[index]); }),
                     labels.end());
        labels.push_back(static_cast<int>(labels_.size()));
        labels_.push_back(label);
    }

    std::vector<PipelineStage> rebuild(int index) {
        std::vector<PipelineStage> stages;
        for (; labels_[index].parent >= 0; index = labels_[index].parent) {
            const Label label = labels_[index];
            PipelineStage stage;
            std::vector<int> taken = digits_[label.used];
            for (std::size_t t = 0; t < have_.size(); ++t)
                for (int k = 0; k < digits_[label.set][t]; ++k) stage.devices.push_back(first_[t] + taken[t] + k);
            stage.leader = stage.devices[label.leader];
            std::vector<std::pair<int, int>> path{{label.start, label.stop}};
            if (label.several) {
                path.clear();
                several_blocks(label.start, label.stop, label.set, label.leader, label.limit, &path);
            }
            for (auto [start, stop] : path) {
                std::vector<int> bounds;
                const auto& devices = members_[label.set];
                double limit = label.limit;
                if (label.several) limit = sum_of(start, stop, label.set, label.leader, kNever).limit;
                const auto& seg = segment(start, stop);
                least_transfer(seg, devices, label.leader, limit, &bounds, nullptr);
                stage.blocks.emplace_back(start, stop, bounds);
            }
            stages.push_back(std::move(stage));
        }
        std::reverse(stages.begin(), stages.end());
        return stages;
    }
};

}  // namespace downset
