// Divisions of least value where the leader has a second load that has a limit: what it receives in addition to what it
// sends, or its own time in addition to the medium's. A shortest path that keeps the limit by itself is taken; else
// these are worked out.
#pragma once

#include "pipelines/loads/rows.hpp"

namespace downset {

class LoadRows : public RowPaths {
public:
    using RowPaths::RowPaths;

    // The division of least value with every other load within the period; its value is infinite where there is none.
    LoadDivision least(const LoadAsk& ask) {
        const auto& devices = sets_.members[ask.set];
        if (devices.size() == 1) return alone(ask);
        prepare(ask);
        const Paths plain{problem_.alone() && !problem_.network.shared, kNoFloor, kNoCount};
        LoadDivision division = shortest(ask, plain);
        if (division.value == kNever || division.tight <= ask.period * kNear) return division;
        if (problem_.network.shared) {
            if (problem_.source < 0 && problem_.sink < 0 &&
                shortest(ask, {true, kNoFloor, kNoCount}).tight > ask.period * kNear)
                return {};
            return between(ask);
        }
        return ask.full ? receiving(ask) : LoadDivision{};
    }

private:
    std::vector<std::vector<double>> front_, back_;
    std::vector<std::vector<int>> onwards_;

    // Full duplex: what the leader receives is all output less its own, and a message from every other device.
    LoadDivision receiving(const LoadAsk& ask) {
        const auto& devices = sets_.members[ask.set];
        const auto& seg = segment(ask);
        const int n = static_cast<int>(devices.size());
        LoadDivision best;
        const auto leaders = leaders_of(ask);
        // The ends' share differs with the leader: one leader at a time where there are such, else all at once.
        const bool apart = problem_.source >= 0 || problem_.sink >= 0 || !problem_.network.uniform;
        for (std::size_t place = 0; place < (apart ? leaders.size() : 1); ++place) {
            LoadAsk one = ask;
            if (apart) one.leader = leaders[place];
            const int leader = devices[leaders[place]];
            if (apart) prepare(one);
            if (!problem_.network.uniform) {
                keep(best, by_rate(one));
                continue;
            }
            const double rate = problem_.per_byte(0, 1), message = seg.inner_out ? problem_.latency(0, 1) : 0;
            fill(kept_, one, leader, {0, 0, rate, 0, 0});
            const double room = ask.period * kAbout - ask.before - ends_of(one, leader, leader).receive;
            const double all = seg.out.final[0] * rate;
            for (int most = n - 1; most >= 0; --most) {
                const double floor = std::max(0.0, all - (room - message * most));
                LoadDivision division = shortest(one, {false, floor, message > 0 ? most : kNoCount});
                if (division.value < kNever && division.tight <= ask.period * kNear) keep(best, std::move(division));
                if (message == 0) break;
            }
        }
        return best;
    }

    std::vector<int> leaders_of(const LoadAsk& ask) const {
        std::vector<int> leaders;
        for (int k = 0; k < static_cast<int>(sets_.members[ask.set].size()); ++k)
            if (roles_[k].leads) leaders.push_back(k);
        return leaders;
    }

    static void keep(LoadDivision& best, LoadDivision division) {
        if (division.value < best.value) best = std::move(division);
    }

    // Likewise where every pair has a rate of its own: every trade of sending against receiving that no other beats.
    LoadDivision by_rate(const LoadAsk& ask) {
        struct Trade {
            double sends, receives;
            int row, from;  // of the trade before
        };
        const auto& devices = sets_.members[ask.set];
        const auto& seg = segment(ask);
        const int rows = seg.rows, n = static_cast<int>(devices.size()), leader = devices[ask.leader];
        const Ends ends = ends_of(ask, leader, leader);
        const double send_room = ask.period * kAbout - ends.send - ask.behind;
        const double receive_room = ask.period * kAbout - ends.receive - ask.before;
        std::vector<std::vector<std::vector<Trade>>> trades_at(n + 1, std::vector<std::vector<Trade>>(rows + 1));
        trades_at[0][0].push_back({0, 0, 0, 0});
        const auto add = [&](std::vector<Trade>& trades, const Trade& trade) {
            if (trade.sends > send_room || trade.receives > receive_room) return;
            for (const Trade& other : trades)
                if (other.sends <= trade.sends && other.receives <= trade.receives) return;
            trades.push_back(trade);  // those that it beats stay: others name them by number
        };
        for (int k = 0; k < n; ++k) {
            const bool leads = k == ask.leader;
            const double rate = problem_.per_byte(leader, devices[k]), message = problem_.latency(leader, devices[k]);
            for (int lo = low_[k]; lo <= high_[k]; ++lo)
                for (int hi = std::max(lo, low_[k + 1]); hi <= high_[k + 1] && !trades_at[k][lo].empty(); ++hi) {
                    if (lo < hi && !fits(leads ? roles_[k].leader : roles_[k].worker, lo, hi, rows)) {
                        if (hi == rows) break;
                        hi = rows - 1;  // the last strip is priced by itself
                        continue;
                    }
                    const double in = lo < hi && !leads ? seg.in.of(lo, hi) : 0;
                    const double out = lo < hi && !leads ? seg.out.of(lo, hi) : 0;
                    for (int from = 0; from < static_cast<int>(trades_at[k][lo].size()); ++from) {
                        const Trade& trade = trades_at[k][lo][from];
                        add(trades_at[k + 1][hi], {trade.sends + in * rate + (in > 0 ? message : 0),
                                                   trade.receives + out * rate + (out > 0 ? message : 0), lo, from});
                    }
                }
        }
        const Trade* best = nullptr;
        for (const Trade& trade : trades_at[n][rows])
            if (!best || trade.sends < best->sends) best = &trade;
        if (!best) return {};
        LoadDivision division;
        division.leader = ask.leader;
        division.bounds.assign(n + 1, rows);
        for (int k = n - 1; k >= 0; --k) {
            division.bounds[k] = best->row;
            best = &trades_at[k][best->row][best->from];
        }
        measure(ask, division);
        return division;
    }

    // Shared without overlap: each leader's strip between the least transfers in front of it and behind it.
    LoadDivision between(const LoadAsk& ask) {
        const int rows = segment(ask).rows, n = static_cast<int>(sets_.members[ask.set].size());
        walk_front(rows, n), walk_back(rows, n);
        LoadDivision best;
        double least = kNever;
        int leader = 0, from = 0, to = 0;
        for (int k = 0; k < n; ++k) {
            const Role& role = roles_[k];
            if (!role.leads) continue;
            const Ends ends = ends_of(ask, sets_.members[ask.set][k], sets_.members[ask.set][k]);
            const double room = ask.period * kAbout - ends.send - ends.receive - ask.before - ask.behind;
            const StripCosts& computing = role.leader.tables[0];
            for (int lo = low_[k]; lo <= high_[k]; ++lo) {
                if (front_[k][lo] == kNever) continue;
                for (int hi = std::max(lo, low_[k + 1]); hi <= high_[k + 1]; ++hi) {
                    const double sends = front_[k][lo] + back_[k + 1][hi];
                    const double value = sends + role.fixed;
                    if (value < least && sends + (lo < hi ? computing.of(lo, hi) : 0) <= room)
                        least = value, leader = k, from = lo, to = hi;
                }
            }
        }
        if (least == kNever) return best;
        best.leader = leader;
        best.bounds.assign(n + 1, rows);
        best.bounds[leader] = from, best.bounds[leader + 1] = to;
        for (int k = leader - 1, row = from; k >= 0; --k) row = best.bounds[k] = from_[0][k][row].row;
        for (int k = leader + 1, row = to; k < n; ++k) row = best.bounds[k + 1] = onwards_[k][row];
        measure(ask, best);
        return best;
    }

    // By k and row: the least transfers of the first k devices, none of them leading, that end there.
    void walk_front(int rows, int n) {
        if (now_.empty()) now_.resize(1), next_.resize(1), from_.resize(1);
        if (static_cast<int>(from_[0].size()) < n) from_[0].resize(n);
        front_.resize(std::max<std::size_t>(front_.size(), n + 1));
        now_[0].assign(rows + 1, kNever), next_[0].assign(rows + 1, kNever);
        now_[0][0] = 0;
        for (int k = 0; k <= n; ++k) {
            front_[k] = now_[0];
            if (k == n) return;
            from_[0][k].resize(rows + 1);
            for (int row = 0; row <= rows; ++row) next_[0][row] = now_[0][row], from_[0][k][row] = {row, 0};
            extend(roles_[k].worker, roles_[k].worker.cost, 0, nullptr, k, 0, 0);
            std::swap(now_[0], next_[0]);
        }
    }

    // By k and row: the least of the devices from k on that begin there.
    void walk_back(int rows, int n) {
        back_.resize(std::max<std::size_t>(back_.size(), n + 1)),
            onwards_.resize(std::max<std::size_t>(onwards_.size(), n));
        back_[n].assign(rows + 1, kNever);
        back_[n][rows] = 0;
        for (int k = n - 1; k >= 0; --k) {
            const Lines& lines = roles_[k].worker;
            const auto& behind = back_[k + 1];
            auto& here = back_[k];
            here = behind;
            onwards_[k].resize(rows + 1);
            for (int row = 0; row <= rows; ++row) onwards_[k][row] = row;
            int head = 0, tail = 0;  // stops that a strip can have, the least first: they fall with its first row
            for (int lo = rows - 1; lo >= 0; --lo) {
                if (const int hi = lo + 1; hi < rows && behind[hi] < kNever) {
                    const double value = behind[hi] + lines.cost->upper[hi];
                    while (tail > head && window_value_[tail - 1] >= value) --tail;
                    window_row_[tail] = hi, window_value_[tail] = value;
                    ++tail;
                }
                while (head < tail && !fits_above(lines, lo, window_row_[head])) ++head;
                if (head < tail && window_value_[head] - lines.cost->lower[lo] < here[lo])
                    here[lo] = window_value_[head] - lines.cost->lower[lo], onwards_[k][lo] = window_row_[head];
                if (fits_last(lines, lo) && lines.cost->final[lo] < here[lo])
                    here[lo] = lines.cost->final[lo], onwards_[k][lo] = rows;
            }
        }
    }
};

}  // namespace downset
