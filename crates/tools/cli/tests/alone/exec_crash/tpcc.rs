//! A TPC-C-like load (standard specification, revision 5.11) as SQL text for SQLite: the tables
//! without the columns that are only filler, the five transactions with their mix, and the
//! consistency conditions (clause 3.3.2). One in a hundred new orders is rolled back (2.4.1.4).
//!
//! A transaction is a function of seed and number; any other input it reads from the tables itself.
//! Each writes its number into `done`. Money is in cents.

use std::fmt::Write as _;

use rng::Rng;

const WAREHOUSES: u64 = 2;
const DISTRICTS: u64 = 4;
const CUSTOMERS: u64 = 15;
const ITEMS: u64 = 60;

/// Creates the tables and their initial contents; complete when `done` contains 0.
pub(crate) fn begin(seed: u64) -> String {
    let mut rng = Rng::new(seed);
    let mut sql = String::from(
        "BEGIN;
         CREATE TABLE done(n INTEGER PRIMARY KEY);
         CREATE TABLE warehouse(w_id INTEGER PRIMARY KEY, w_name, w_tax INT, w_ytd INT);
         CREATE TABLE district(d_w_id, d_id, d_name, d_tax INT, d_ytd INT, d_next_o_id INT,
             PRIMARY KEY(d_w_id, d_id)) WITHOUT ROWID;
         CREATE TABLE customer(c_w_id, c_d_id, c_id, c_last, c_balance INT, c_ytd_payment INT,
             c_payment_cnt INT, c_delivery_cnt INT, c_data, PRIMARY KEY(c_w_id, c_d_id, c_id)) WITHOUT ROWID;
         CREATE INDEX customer_name ON customer(c_w_id, c_d_id, c_last);
         CREATE TABLE item(i_id INTEGER PRIMARY KEY, i_name, i_price INT);
         CREATE TABLE stock(s_w_id, s_i_id, s_quantity INT, s_ytd INT, s_order_cnt INT, s_remote_cnt INT, s_dist,
             PRIMARY KEY(s_w_id, s_i_id)) WITHOUT ROWID;
         CREATE TABLE orders(o_w_id, o_d_id, o_id INT, o_c_id, o_carrier_id, o_ol_cnt INT,
             PRIMARY KEY(o_w_id, o_d_id, o_id)) WITHOUT ROWID;
         CREATE INDEX orders_customer ON orders(o_w_id, o_d_id, o_c_id, o_id);
         CREATE TABLE new_order(no_w_id, no_d_id, no_o_id INT, PRIMARY KEY(no_w_id, no_d_id, no_o_id)) WITHOUT ROWID;
         CREATE TABLE order_line(ol_w_id, ol_d_id, ol_o_id INT, ol_number INT, ol_i_id, ol_supply_w_id, ol_quantity INT,
             ol_amount INT, ol_delivery INT, ol_dist_info,
             PRIMARY KEY(ol_w_id, ol_d_id, ol_o_id, ol_number)) WITHOUT ROWID;
         CREATE TABLE history(h_id INTEGER PRIMARY KEY, h_w_id, h_d_id, h_c_id, h_amount INT, h_data);\n",
    );
    let mut row = |text: String| writeln!(sql, "INSERT INTO {text};").unwrap();
    for i in 1..=ITEMS {
        let price = 100 + rng.below(9900);
        row(format!("item VALUES({i}, 'item {i}', {price})"));
    }
    for w in 1..=WAREHOUSES {
        row(format!("warehouse VALUES({w}, 'warehouse {w}', {}, 0)", rng.below(2000)));
        for i in 1..=ITEMS {
            let quantity = 10 + rng.below(91);
            row(format!(
                "stock VALUES({w}, {i}, {quantity}, 0, 0, 0, '{}')",
                letters(&mut rng, 24)
            ));
        }
        for d in 1..=DISTRICTS {
            row(format!("district VALUES({w}, {d}, 'd{d}', {}, 0, 1)", rng.below(2000)));
            for c in 1..=CUSTOMERS {
                let data = letters(&mut rng, 200);
                row(format!("customer VALUES({w}, {d}, {c}, '{}', 0, 0, 0, 0, '{data}')", name(c)));
            }
        }
    }
    sql + "INSERT INTO done VALUES(0); COMMIT; SELECT 'done', 0;\n"
}

/// Returns transaction `number`, which prints `done|number` once it is committed.
pub(crate) fn transaction(seed: u64, number: u64) -> String {
    let mut rng = Rng::new(seed).fork(number);
    let at = DistrictId { w: 1 + rng.below(WAREHOUSES), d: 1 + rng.below(DISTRICTS) };
    let customer = 1 + rng.below(CUSTOMERS);
    // The mix of clause 5.2.3, with fewer read-only transactions.
    let work = match rng.below(100) {
        0..46 => new_order(&mut rng, at, customer),
        46..90 => payment(&mut rng, at, customer),
        90..96 => delivery(&mut rng, at.w),
        96..98 => order_status(at, customer),
        _ => stock_level(&mut rng, at),
    };
    format!("{work}INSERT INTO done VALUES({number}); COMMIT; SELECT 'done', {number};\n")
}

#[derive(Clone, Copy)]
struct DistrictId {
    w: u64,
    d: u64,
}

/// Clause 2.4.
fn new_order(rng: &mut Rng, DistrictId { w, d }: DistrictId, c: u64) -> String {
    let here = format!("d_w_id = {w} AND d_id = {d}");
    let mut lines: Vec<u64> = (1..=ITEMS).collect();
    rng.shuffle(&mut lines);
    lines.truncate(5 + rng.below(11) as usize);
    let count = lines.len();
    let mut sql = format!(
        "BEGIN; UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE {here};\n\
         INSERT INTO orders SELECT {w}, {d}, d_next_o_id - 1, {c}, NULL, {count} FROM district WHERE {here};\n\
         INSERT INTO new_order SELECT {w}, {d}, d_next_o_id - 1 FROM district WHERE {here};\n"
    );
    for (number, item) in (1..).zip(lines) {
        let (quantity, remote) = (1 + rng.below(10), rng.chance(0.01));
        let from = if remote { 1 + w % WAREHOUSES } else { w };
        writeln!(
            sql,
            "UPDATE stock SET s_quantity = CASE WHEN s_quantity >= {quantity} + 10 THEN s_quantity - {quantity} \
             ELSE s_quantity - {quantity} + 91 END, s_ytd = s_ytd + {quantity}, s_order_cnt = s_order_cnt + 1, \
             s_remote_cnt = s_remote_cnt + {remote} WHERE s_w_id = {from} AND s_i_id = {item};\n\
             INSERT INTO order_line SELECT {w}, {d}, d_next_o_id - 1, {number}, {item}, {from}, {quantity}, \
             {quantity} * i_price, NULL, s_dist FROM district, item, stock \
             WHERE {here} AND i_id = {item} AND s_w_id = {from} AND s_i_id = {item};",
        )
        .unwrap();
    }
    if rng.chance(0.01) {
        sql += "ROLLBACK; BEGIN;\n";
    }
    sql
}

/// Clause 2.5: selects the customer by number or, in 60 of 100, by name.
fn payment(rng: &mut Rng, DistrictId { w, d }: DistrictId, c: u64) -> String {
    let amount = 100 + rng.below(499_900);
    let who = if rng.chance(0.6) {
        format!(
            "(SELECT c_id FROM customer WHERE c_w_id = {w} AND c_d_id = {d} AND c_last = '{}' ORDER BY c_id LIMIT 1)",
            name(c)
        )
    } else {
        c.to_string()
    };
    let data = letters(rng, 24);
    format!(
        "BEGIN; UPDATE warehouse SET w_ytd = w_ytd + {amount} WHERE w_id = {w};\n\
         UPDATE district SET d_ytd = d_ytd + {amount} WHERE d_w_id = {w} AND d_id = {d};\n\
         INSERT INTO history(h_w_id, h_d_id, h_c_id, h_amount, h_data) VALUES({w}, {d}, {who}, {amount}, '{data}');\n\
         UPDATE customer SET c_balance = c_balance - {amount}, c_ytd_payment = c_ytd_payment + {amount}, \
         c_payment_cnt = c_payment_cnt + 1, c_data = substr('{data}' || c_data, 1, 500) \
         WHERE c_w_id = {w} AND c_d_id = {d} AND c_id = {who};\n"
    )
}

/// Clause 2.7, for all districts in one transaction.
fn delivery(rng: &mut Rng, w: u64) -> String {
    let carrier = 1 + rng.below(10);
    let mut sql = String::from("BEGIN;\n");
    for d in 1..=DISTRICTS {
        let oldest =
            format!("(SELECT min(no_o_id) FROM new_order WHERE no_w_id = {w} AND no_d_id = {d})");
        let order = format!("o_w_id = {w} AND o_d_id = {d} AND o_id = {oldest}");
        let lines = format!("ol_w_id = {w} AND ol_d_id = {d} AND ol_o_id = {oldest}");
        writeln!(
            sql,
            "UPDATE customer SET c_balance = c_balance + (SELECT sum(ol_amount) FROM order_line WHERE {lines}), \
             c_delivery_cnt = c_delivery_cnt + 1 \
             WHERE c_w_id = {w} AND c_d_id = {d} AND c_id = (SELECT o_c_id FROM orders WHERE {order});\n\
             UPDATE orders SET o_carrier_id = {carrier} WHERE {order};\n\
             UPDATE order_line SET ol_delivery = 1 WHERE {lines};\n\
             DELETE FROM new_order WHERE no_w_id = {w} AND no_d_id = {d} AND no_o_id = {oldest};"
        )
        .unwrap();
    }
    sql
}

/// Clause 2.6.
fn order_status(DistrictId { w, d }: DistrictId, c: u64) -> String {
    format!(
        "BEGIN; SELECT 'status', c_balance, o_id, o_carrier_id, count(ol_number), sum(ol_amount) \
         FROM customer, orders, order_line WHERE c_w_id = {w} AND c_d_id = {d} AND c_id = {c} \
         AND o_w_id = {w} AND o_d_id = {d} AND o_c_id = {c} AND ol_w_id = {w} AND ol_d_id = {d} AND ol_o_id = o_id \
         GROUP BY o_id ORDER BY o_id DESC LIMIT 1;\n"
    )
}

/// Clause 2.8.
fn stock_level(rng: &mut Rng, DistrictId { w, d }: DistrictId) -> String {
    let threshold = 10 + rng.below(11);
    format!(
        "BEGIN; SELECT 'stock', count(DISTINCT s_i_id) FROM order_line, stock, district \
         WHERE d_w_id = {w} AND d_id = {d} AND ol_w_id = {w} AND ol_d_id = {d} AND ol_o_id >= d_next_o_id - 20 \
         AND s_w_id = {w} AND s_i_id = ol_i_id AND s_quantity < {threshold};\n"
    )
}

/// Prints `whole|…` for each violation of a consistency condition; nothing if all hold.
pub(crate) const CONDITIONS: &str = "
    SELECT 'whole', 1, w_id FROM warehouse
      WHERE w_ytd <> (SELECT sum(d_ytd) FROM district WHERE d_w_id = w_id);
    SELECT 'whole', 2, d_w_id, d_id FROM district
      WHERE d_next_o_id - 1 <> (SELECT ifnull(max(o_id), 0) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id)
      OR d_next_o_id - 1 < (SELECT ifnull(max(no_o_id), 0) FROM new_order WHERE no_w_id = d_w_id AND no_d_id = d_id);
    SELECT 'whole', 3, no_w_id, no_d_id FROM new_order GROUP BY no_w_id, no_d_id
      HAVING max(no_o_id) - min(no_o_id) + 1 <> count(*);
    SELECT 'whole', 4, d_w_id, d_id FROM district
      WHERE (SELECT total(o_ol_cnt) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id)
      <> (SELECT count(*) FROM order_line WHERE ol_w_id = d_w_id AND ol_d_id = d_id);
    SELECT 'whole', 5, o_w_id, o_d_id, o_id FROM orders WHERE (o_carrier_id IS NULL)
      <> EXISTS(SELECT 1 FROM new_order WHERE no_w_id = o_w_id AND no_d_id = o_d_id AND no_o_id = o_id);
    SELECT 'whole', 6, o_w_id, o_d_id, o_id FROM orders WHERE o_ol_cnt
      <> (SELECT count(*) FROM order_line WHERE ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id);
    SELECT 'whole', 7, ol_w_id, ol_d_id, ol_o_id FROM order_line, orders
      WHERE o_w_id = ol_w_id AND o_d_id = ol_d_id AND o_id = ol_o_id AND (ol_delivery IS NULL) <> (o_carrier_id IS NULL);
    SELECT 'whole', 8, w_id FROM warehouse WHERE w_ytd <> (SELECT total(h_amount) FROM history WHERE h_w_id = w_id);
    SELECT 'whole', 9, d_w_id, d_id FROM district
      WHERE d_ytd <> (SELECT total(h_amount) FROM history WHERE h_w_id = d_w_id AND h_d_id = d_id);
    SELECT 'whole', 12, c_w_id, c_d_id, c_id FROM customer WHERE c_balance + c_ytd_payment
      <> (SELECT total(ol_amount) FROM order_line, orders WHERE o_w_id = c_w_id AND o_d_id = c_d_id AND o_c_id = c_id
          AND ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id AND ol_delivery IS NOT NULL);
";

/// Returns a customer's name; three customers share each name.
fn name(customer: u64) -> String {
    const SYLLABLES: [&str; 5] = ["BAR", "OUGHT", "ABLE", "PRI", "PRES"];
    let i = customer as usize % 5;
    format!("{}{}", SYLLABLES[i], SYLLABLES[(i + 2) % 5])
}

fn letters(rng: &mut Rng, count: usize) -> String {
    (0..count).map(|_| char::from(b'a' + rng.below(26) as u8)).collect()
}
